//! [`Brain`]: the source that reads from a brain over gRPC. The transport is a unix socket, TCP or, on Windows, a named
//! pipe.

mod channel;
mod local;
#[cfg(feature = "tls")]
mod tls;
mod v1;

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use http::uri::{Authority, Scheme};
use localnet_proto::{
    Address, Revision, ServiceKey, Update,
    decode::Assembler,
    encode,
    history::{Entry, HistoryRequest, history_client::HistoryClient},
    reasons::Reasons,
    traffic::{NodeTraffic, TrafficReport, TrafficRequest, traffic_client::TrafficClient},
    wire,
};
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tonic::{Code, Status, Streaming};
use wire::{backends_client::BackendsClient, endpoints_client::EndpointsClient, reasons_client::ReasonsClient};

use self::channel::{CONNECT_TIMEOUT, Channel};
use crate::source::{Report, Source, SourceError};

const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest accepted message. The brain's messages are far smaller, so a peer that sends more is not a brain.
const MAX_MESSAGE: usize = 16 << 20;

/// Files for TLS on TCP, which needs the feature `tls`. They are read each time the client connects. If they are unusable at
/// that time, the client logs a warning and uses the last usable contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that may have issued the brain's certificate.
    pub ca: PathBuf,
    /// The client's own certificate and key. The brain accepts no client without them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A brain at an address. Connects at the first request, and again after each failure.
#[derive(Clone, Debug)]
pub struct Brain {
    address: Address,
    channel: Channel,
    /// `None`: reads `localnetv1`.
    v1: Option<v1::V1>,
}

impl Brain {
    /// The brain at `address`. Does not connect yet.
    ///
    /// # Errors
    /// Returns an error if this system cannot connect to such an address, or if a TLS file cannot be read. Without the
    /// feature `tls`, returns an error if there are TLS files for an address on TCP.
    pub fn new(address: Address, tls: Option<&TlsFiles>) -> anyhow::Result<Self> {
        let channel = match &address {
            Address::Unix(_) | Address::Pipe(_) => local::channel(&address)?,
            Address::Tcp { host, port } => {
                let authority = address.to_string().replacen("tcp://", "", 1);
                let authority: Authority = authority.parse().with_context(|| format!("invalid address {address}"))?;
                let (host, port) = (host.clone(), *port);
                match tls {
                    #[cfg(feature = "tls")]
                    Some(files) => {
                        let tls = tls::Tls::load(files.clone()).context("failed to load the TLS files")?;
                        let tls = std::sync::Arc::new(tls);
                        Channel::new(Scheme::HTTPS, authority, move || {
                            let (tls, host) = (std::sync::Arc::clone(&tls), host.clone());
                            async move { tls.connect(&host, port).await }
                        })
                    }
                    #[cfg(not(feature = "tls"))]
                    Some(_) => anyhow::bail!(
                        "this program is built without TLS: the crate localnet-client lacks its feature `tls`"
                    ),
                    None => Channel::new(Scheme::HTTP, authority, move || connect(host.clone(), port)),
                }
            }
        };
        Ok(Self { address, channel, v1: None })
    }

    /// Reads the state in the draft of `localnet.v1`, which any release may change: the brain sends only the endpoints that change. The
    /// brain must run with `--draft-v1`. `name` identifies the reader in the brain's log: at most 63 lower-case letters, digits and
    /// hyphens. A reader keeps the state, so each source that reads needs its own `Brain`, not a clone.
    #[must_use]
    pub fn reading_draft_v1(self, name: impl Into<String>) -> Self {
        Self { v1: Some(v1::V1::new(name.into())), ..self }
    }

    /// Explains the state of a Service to people; see `Reasons.Why` in `localnetv1.proto`.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, has no state yet, or is too old to know the call.
    pub async fn why(&self, service: &ServiceKey) -> Result<Reasons, SourceError> {
        let mut client = ReasonsClient::new(self.channel.clone());
        let request = wire::ServiceKey::from(service);
        Ok(client.why(request).await.map_err(|status| failed(&status))?.into_inner().into())
    }

    /// The progress of the brain and of the backends; see `Reasons.Status`.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn status(&self) -> Result<wire::BrainStatus, SourceError> {
        let mut client = ReasonsClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Ok(client.status(wire::StatusRequest {}).await.map_err(|status| failed(&status))?.into_inner())
    }

    /// The traffic that backends have counted; see `Traffic.Read` in `trafficv1alpha1.proto`.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn traffic(&self) -> Result<NodeTraffic, SourceError> {
        let mut client = TrafficClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Ok(client.read(TrafficRequest {}).await.map_err(|status| failed(&status))?.into_inner())
    }

    /// The last changes of the state, oldest first; see `History.Read` in `historyv1alpha1.proto`.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn history(&self) -> Result<Vec<Entry>, SourceError> {
        let mut client = HistoryClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let mut stream = client.read(HistoryRequest::default()).await.map_err(|status| failed(&status))?.into_inner();
        let mut entries = Vec::new();
        while let Some(entry) = stream.message().await.map_err(|status| failed(&status))? {
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The entries that the brain records from now on; see `HistoryRequest.Follow` in `historyv1alpha1.proto`.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn follow(&self) -> Result<Following, SourceError> {
        let mut client = HistoryClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let stream = client.read(HistoryRequest { follow: true }).await.map_err(|status| failed(&status))?;
        Ok(Following(stream.into_inner()))
    }
}

/// The entries that a brain records.
#[derive(Debug)]
pub struct Following(Streaming<Entry>);

impl Following {
    /// Waits for the next entry. `None` if the brain ends. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the connection is lost, or if the reader is too slow.
    pub async fn next(&mut self) -> Result<Option<Entry>, SourceError> {
        self.0.message().await.map_err(|status| failed(&status))
    }
}

impl Source for Brain {
    async fn next(&self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        if let Some(v1) = &self.v1 {
            return v1.next(self.channel.clone(), have, fold).await;
        }
        let mut client = EndpointsClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let request = encode::next_filter(have, fold);
        let mut stream = client.next(request).await.map_err(|status| failed(&status))?.into_inner();
        let mut assembler = Assembler::default();
        while let Some(item) = stream.message().await.map_err(|status| failed(&status))? {
            assembler.push(item).map_err(|error| SourceError::Invalid(error.to_string()))?;
        }
        match assembler.finish().map_err(|error| SourceError::Invalid(error.to_string()))? {
            // The caller holds no state to which the changes could be applied. Applying them anyway would give a state
            // that never existed.
            Update::Delta { .. } if !fold => {
                Err(SourceError::Invalid("changes instead of the requested full state".to_owned()))
            }
            update => Ok(update),
        }
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        let mut client = BackendsClient::new(self.channel.clone());
        taken(client.report(wire::BackendReport::from(report))).await
    }

    async fn report_traffic(&self, traffic: &TrafficReport) -> Result<(), SourceError> {
        let mut client = TrafficClient::new(self.channel.clone());
        taken(client.report(traffic.clone())).await
    }

    fn describe(&self) -> String {
        self.address.to_string()
    }
}

/// Opens a connection over TCP to an address of the host.
async fn connect(host: String, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((&*host, port)).await?.collect();
    let stream = first(&addresses, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to the first address that accepts. Each has an equal share of [`CONNECT_TIMEOUT`], so that one which does not answer
/// leaves time for the others. One more share is for DNS and the TLS handshake.
async fn first<S, F>(addresses: &[SocketAddr], connect: impl Fn(SocketAddr) -> F) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
    let share = CONNECT_TIMEOUT / shares;
    let mut errors = Vec::new();
    for address in addresses {
        match timeout(share, connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            // The other addresses would need a descriptor, too. The caller looks for the code of this error.
            Ok(Err(error)) if is_out_of_files(&error) => return Err(error),
            Ok(Err(error)) => errors.push(format!("{address}: {error}")),
            Err(_) => errors.push(format!("{address}: no answer within {} ms", share.as_millis())),
        }
    }
    Err(io::Error::other(if errors.is_empty() { "the host has no address".to_owned() } else { errors.join("; ") }))
}

/// Waits until the brain has accepted a report.
async fn taken<T>(reply: impl Future<Output = Result<T, Status>>) -> Result<(), SourceError> {
    match timeout(REPORT_TIMEOUT, reply).await {
        Ok(Ok(_)) => Ok(()),
        // A brain that does not implement reports needs none.
        Ok(Err(status)) if status.code() == Code::Unimplemented => Ok(()),
        Ok(Err(status)) => Err(not_taken(&status)),
        Err(_) => Err(SourceError::Unreachable(format!("no reply within {REPORT_TIMEOUT:?}"))),
    }
}

/// The error for a report that the brain did not accept. It is `Refused` if the code means that the brain would refuse
/// the same report again.
fn not_taken(status: &Status) -> SourceError {
    match status.code() {
        code @ (Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange) => SourceError::Refused(format!("{code:?}: {}", status.message())),
        _ => failed(status),
    }
}

/// Whether the process (`EMFILE`) or the host (`ENFILE`) has no file descriptors left.
fn is_out_of_files(error: &io::Error) -> bool {
    const CODES: [i32; 2] = [24, 23];
    cfg!(unix) && error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

fn failed(status: &Status) -> SourceError {
    let mut texts: Vec<String> = vec![status.message().to_owned()];
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(is_out_of_files) {
            return SourceError::Unreachable(format!(
                "{error}: this process has no file descriptor left for the connection; raise the limit of open files (LimitNOFILE= of the unit, ulimit -n)"
            ));
        }
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.retain(|text| !text.is_empty());
    texts.dedup();
    let text = texts.join(": ");
    match status.code() {
        Code::Unavailable => SourceError::Unreachable(text),
        code => SourceError::Broken(format!("{code:?}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Connects to addresses by their port: 1 does not answer, 2 refuses, 3 accepts, and 4 finds no descriptor.
    async fn port(address: SocketAddr) -> io::Result<u16> {
        match address.port() {
            1 => std::future::pending().await,
            2 => Err(io::ErrorKind::ConnectionRefused.into()),
            4 => Err(io::Error::from_raw_os_error(24)),
            port => Ok(port),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_address_is_tried_if_one_refuses_or_does_not_answer() {
        let at = |ports: &[u16]| -> Vec<_> { ports.iter().map(|port| ([192, 0, 2, 1], *port).into()).collect() };
        let begun = Instant::now();
        assert_eq!(first(&at(&[1, 2, 3]), port).await.unwrap(), 3);
        assert!(begun.elapsed().abs_diff(CONNECT_TIMEOUT / 4) < Duration::from_millis(2), "{:?}", begun.elapsed());

        let begun = Instant::now();
        let texts = "192.0.2.1:2: connection refused; 192.0.2.1:1: no answer within 1666 ms";
        assert_eq!(first(&at(&[2, 1]), port).await.unwrap_err().to_string(), texts);
        assert!(begun.elapsed() < CONNECT_TIMEOUT);
        assert_eq!(first(&[], port).await.unwrap_err().to_string(), "the host has no address");
        #[cfg(unix)]
        assert!(is_out_of_files(&first(&at(&[4, 3]), port).await.unwrap_err()));
    }

    /// A process with a limit of 12 descriptors printed "no state from the brain: Too many open files", which seemed to
    /// blame the brain.
    #[test]
    fn a_lack_of_descriptors_is_not_blamed_on_the_brain() {
        let failing = |code| {
            let status = Status::from_error(Box::new(io::Error::from_raw_os_error(code)));
            failed(&status).to_string()
        };
        for code in [23, 24] {
            let text = failing(code);
            assert!(text.contains("this process has no file descriptor left") && text.contains("ulimit -n"), "{text}");
        }
        assert!(!failing(111).contains("descriptor"));
    }
}
