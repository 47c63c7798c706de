//! Starts the DNS server of `examples/dns`, and asks DNS servers.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use hickory_server::proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};

use crate::{PATIENCE, await_condition, program};

/// A program that is killed when this value is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a program. Its output goes to the file `log`.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, or the file cannot be created.
    pub fn start(path: &Path, arguments: &[&str], log: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log).with_context(|| log.display().to_string())?;
        let output = log.try_clone()?;
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(log);
        Ok(Self(command.spawn().with_context(|| path.display().to_string())?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails if the program has exited.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The brain with the view for DNS, and the DNS server of the example. Both run until this value is dropped.
#[derive(Debug)]
pub struct Example {
    /// The address of the DNS server.
    pub address: SocketAddr,
    _programs: [Process; 2],
}

impl Example {
    /// Starts both programs, with their logs and the socket in `folder`, and waits until the DNS server listens.
    ///
    /// # Errors
    /// Returns an error if a program is not built, or does not start in time.
    pub fn start(folder: &Path, source: &[&str]) -> anyhow::Result<Self> {
        let socket = folder.join("brain.sock");
        let api = format!("unix://{}", socket.display());
        // Without `--shadow`, the brain opens ports of the machine.
        let flags = ["--node-name", "node-a", "--draft-v1", "--dns", "--shadow", "--listen", &api];
        let brain = [source, &flags].concat();
        let brain = Process::start(&program("localnet-brain")?, &brain, &folder.join("brain.log"))?;
        await_condition("the socket of the brain", || socket.exists())?;
        let address = free_address()?;
        let flags = ["--api", &api, "--listen", &address.to_string()];
        let server = Process::start(&program("dns-example")?, &flags, &folder.join("dns.log"))?;
        await_condition("the DNS server", || TcpStream::connect(address).is_ok())?;
        Ok(Self { address, _programs: [brain, server] })
    }
}

/// An address of this machine whose port no program uses for UDP or TCP.
///
/// # Errors
/// Returns an error if there is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    for _ in 0..100 {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        if UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    anyhow::bail!("no port is free for UDP and TCP")
}

/// What a server has answered. The serial numbers of zones are 0, and names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The response code.
    pub code: ResponseCode,
    /// Whether the server is an authority for the name.
    pub authoritative: bool,
    /// The answers.
    pub answers: BTreeSet<String>,
    /// The authorities.
    pub authorities: BTreeSet<String>,
    /// The additional records.
    pub additionals: BTreeSet<String>,
}

/// Asks a DNS server over TCP.
#[derive(Debug)]
pub struct Client {
    server: SocketAddr,
    /// `None` after a question without an answer: servers close a connection that has been idle for some seconds.
    stream: Option<TcpStream>,
    /// The ID of the last question.
    id: u16,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns an error if the server does not listen.
    pub fn connect(server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { server, stream: Some(connected(server)?), id: 0 })
    }

    /// Asks a question. After an error, the next question is asked on a new connection.
    ///
    /// # Errors
    /// Returns an error if the name is invalid, or if the server does not answer the question.
    pub fn ask(&mut self, name: &str, kind: RecordType) -> anyhow::Result<Reply> {
        self.id = self.id.wrapping_add(1);
        let message = question(self.id, name, kind)?;
        let length = u16::try_from(message.len())?.to_be_bytes();
        let mut stream = self.stream.take().map_or_else(|| connected(self.server), Ok)?;
        stream.write_all(&[&length[..], &message].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer)?;
        self.stream = Some(stream);
        reply(&answer, self.id).with_context(|| format!("{kind} {name}"))
    }
}

fn connected(server: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks a question over UDP. Also returns whether the answer was truncated.
///
/// # Errors
/// Returns an error if the name is invalid, or if the server does not answer the question.
pub fn ask_udp(server: SocketAddr, name: &str, kind: RecordType) -> anyhow::Result<(Reply, bool)> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(&question(1, name, kind)?, server)?;
    let mut answer = vec![0; 65_535];
    let length = socket.recv(&mut answer)?;
    Ok((reply(&answer[..length], 1)?, Message::from_vec(&answer[..length])?.metadata.truncation))
}

fn question(id: u16, name: &str, kind: RecordType) -> anyhow::Result<Vec<u8>> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).with_context(|| name.to_owned())?, kind));
    Ok(message.to_vec()?)
}

fn reply(message: &[u8], id: u16) -> anyhow::Result<Reply> {
    let message = Message::from_vec(message)?;
    anyhow::ensure!(message.metadata.id == id, "the answer is for another question");
    let texts = |records: &[Record]| records.iter().map(text).collect();
    Ok(Reply {
        code: message.metadata.response_code,
        authoritative: message.metadata.authoritative,
        answers: texts(&message.answers),
        authorities: texts(&message.authorities),
        additionals: texts(&message.additionals),
    })
}

fn text(record: &Record) -> String {
    let mut data = record.data.clone();
    if let RData::SOA(soa) = &mut data {
        soa.serial = 0;
    }
    format!("{} {} {} {data}", record.name, record.ttl, record.record_type()).to_lowercase()
}
