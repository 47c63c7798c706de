//! Serves DNS over TCP (RFC 7766). hickory's server accepts connections without a limit, and keeps a processor busy once the process may
//! open no more files, so this loop takes its place.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::StreamExt as _;
use hickory_server::{
    net::{BufDnsStreamHandle, runtime::TokioTime, xfer::Protocol},
    server::{Request, RequestHandler, ResponseHandle},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time,
};
use tracing::{debug, warn};

/// The number of connections that are served at the same time. Further ones wait in the queue of the kernel.
pub(crate) const CONNECTIONS: usize = 256;
/// How long a client may take to send a whole question, and to read an answer.
const IDLE: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves connections. Never returns.
pub(crate) async fn run(listener: TcpListener, handler: Arc<impl RequestHandler>) -> anyhow::Result<()> {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let connection = Arc::clone(&free).acquire_owned().await.context("the limit of connections is gone")?;
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a TCP connection; raise the limit of open files if it is reached");
                time::sleep(PAUSE).await;
                continue;
            }
        };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            if let Err(error) = converse(stream, client, &*handler).await {
                debug!(%client, %error, "a TCP connection has ended");
            }
            drop(connection);
        });
    }
}

/// Answers questions one after the other, until the client closes the connection, or is too slow, or sends no question.
async fn converse(mut stream: TcpStream, client: SocketAddr, handler: &impl RequestHandler) -> io::Result<()> {
    loop {
        let question = async {
            let length = stream.read_u16().await?;
            let mut question = vec![0; usize::from(length)];
            stream.read_exact(&mut question).await?;
            Ok::<_, io::Error>(question)
        };
        let question = time::timeout(IDLE, question).await??;
        let request = Request::from_bytes(question, client, Protocol::Tcp).map_err(io::Error::other)?;
        let (answers, mut sent) = BufDnsStreamHandle::new(client);
        handler.handle_request::<_, TokioTime>(&request, ResponseHandle::new(client, answers, Protocol::Tcp)).await;
        let Some(answer) = sent.next().await else { return Ok(()) };
        let (answer, _) = answer.into_parts();
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let message = [&length.to_be_bytes()[..], &answer].concat();
        time::timeout(IDLE, stream.write_all(&message)).await??;
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::RwLock};

    use hickory_server::proto::rr::Name;

    use super::*;
    use crate::{names::Names, serve::Handler};

    /// A question for the version of the specification.
    const QUESTION: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x0bdns-version\x07cluster\x05local\0\0\x10\0\x01";

    async fn serve() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let names = Arc::new(RwLock::new(Some(Names::default())));
        let handler = Handler::new(Name::from_ascii("cluster.local.").unwrap(), names);
        tokio::spawn(run(listener, Arc::new(handler)));
        address
    }

    async fn ask(client: &mut TcpStream) -> Vec<u8> {
        let length = u16::try_from(QUESTION.len()).unwrap();
        client.write_all(&[&length.to_be_bytes()[..], QUESTION].concat()).await.unwrap();
        let mut answer = vec![0; client.read_u16().await.unwrap().into()];
        client.read_exact(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_connection_answers_one_question_after_the_other() {
        let mut client = TcpStream::connect(serve().await).await.unwrap();
        for _ in 0..2 {
            let answer = ask(&mut client).await;
            assert_eq!((&answer[..2], &answer[answer.len() - 5..]), (&b"\0\x07"[..], &b"1.1.0"[..]));
        }
        client.write_all(b"\0\x05short").await.unwrap();
        assert!(client.read_u16().await.is_err(), "the server closes the connection");
    }

    /// hickory's own loop accepts all of them, until the process can open no more files.
    #[tokio::test]
    async fn connections_beyond_the_limit_wait_until_another_one_ends() {
        let address = serve().await;
        let mut served = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = TcpStream::connect(address).await.unwrap();
            ask(&mut client).await;
            served.push(client);
        }
        let mut waiting = TcpStream::connect(address).await.unwrap();
        let mut answer = Box::pin(ask(&mut waiting));
        // A served connection is answered although another one waits.
        tokio::select! {
            biased;
            _ = &mut answer => panic!("the limit has no effect"),
            _ = async { for client in &mut served { ask(client).await; } } => {}
        }
        served.pop();
        answer.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_without_a_whole_question_is_disconnected() {
        let address = serve().await;
        for sent in [&b""[..], b"\0", b"\0\x20\0\x07"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(sent).await.unwrap();
            assert!(client.read_u16().await.is_err());
        }
    }
}
