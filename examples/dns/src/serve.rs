//! Serves DNS over UDP with hickory's server, and over TCP. hickory decodes questions, encodes answers, and truncates those that are too long.

use std::sync::{Arc, RwLock};

use anyhow::Context as _;
use hickory_server::{
    net::runtime::Time,
    proto::{
        op::{Edns, Header, HeaderCounts, Metadata, OpCode, ResponseCode},
        rr::{DNSClass, Name},
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo, Server},
    zone_handler::MessageResponseBuilder,
};
use tokio::net::{TcpListener, UdpSocket};

use crate::{
    answer::{Answer, answer},
    names::Names,
    tcp,
};

/// The largest answer over UDP, in bytes: larger ones may be lost, as fragments.
const LARGEST: u16 = 1232;

/// Answers questions. Clones share the names.
#[derive(Clone)]
pub(crate) struct Handler {
    domain: Name,
    names: Arc<RwLock<Option<Names>>>,
}

/// Answers questions with `names`. `domain` is the domain of the cluster.
pub(crate) async fn run(
    udp: UdpSocket,
    tcp: TcpListener,
    domain: Name,
    names: Arc<RwLock<Option<Names>>>,
) -> anyhow::Result<()> {
    let handler = Handler::new(domain, names);
    let mut server = Server::new(handler.clone());
    server.register_socket(udp);
    tokio::select! {
        result = server.block_until_done() => result.context("the DNS server has failed"),
        result = tcp::run(tcp, handler.into()) => result,
    }
}

impl Handler {
    pub(crate) fn new(domain: Name, names: Arc<RwLock<Option<Names>>>) -> Self {
        Self { domain, names }
    }

    fn answer(&self, request: &Request) -> Answer {
        let refused = |code| Answer { code, ..Answer::default() };
        let Ok(info) = request.request_info() else { return refused(ResponseCode::FormErr) };
        // An UPDATE (RFC 2136) also has a question. Its sender must not take an answer for a confirmation.
        if request.metadata.op_code != OpCode::Query {
            return refused(ResponseCode::NotImp);
        }
        let question = info.query.original();
        if question.query_class() != DNSClass::IN {
            return refused(ResponseCode::Refused);
        }
        let names = self.names.read().expect("no code panics while it holds the lock");
        let Some(names) = &*names else { return refused(ResponseCode::ServFail) };
        answer(names, &self.domain, question.name(), question.query_type())
            .unwrap_or_else(|| refused(ResponseCode::Refused))
    }
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut client: R) -> ResponseInfo {
        let Answer { code, answers, soa, additionals } = self.answer(request);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = code;
        metadata.authoritative = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
        let edns = request.edns.as_ref().map(|edns| {
            let mut own = Edns::new();
            own.set_max_payload(edns.max_payload().clamp(512, LARGEST));
            own
        });
        let builder = MessageResponseBuilder::new(&request.queries, edns.as_ref());
        let response = builder.build(metadata, &answers, [], &soa, &additionals);
        match client.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, "cannot send an answer");
                let mut metadata = Metadata::response_from_request(&request.metadata);
                metadata.response_code = ResponseCode::ServFail;
                Header { metadata, counts: HeaderCounts::default() }.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_server::net::xfer::Protocol;

    use super::*;

    #[test]
    fn only_queries_of_the_class_in_are_answered() {
        let names = Arc::new(RwLock::new(Some(Names::default())));
        let handler = Handler::new(Name::from_ascii("cluster.local.").unwrap(), names);
        let code = |operation: u8, class: u8| {
            let header = [0, 7, operation << 3, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            let question = [&header[..], b"\x07cluster\x05local\0\0\x06\0", &[class]].concat();
            handler.answer(&Request::from_bytes(question, ([127, 0, 0, 1], 53).into(), Protocol::Udp).unwrap()).code
        };
        assert_eq!(code(0, 1), ResponseCode::NoError);
        // Those of CoreDNS 1.15.0, which processes NOTIFY (4) like a query.
        for (operation, class, expected) in [
            (1, 1, ResponseCode::NotImp),
            (2, 1, ResponseCode::NotImp),
            (4, 1, ResponseCode::NotImp),
            (5, 1, ResponseCode::NotImp),
            (0, 3, ResponseCode::Refused),
            (0, 254, ResponseCode::Refused),
            (0, 255, ResponseCode::Refused),
        ] {
            assert_eq!(code(operation, class), expected, "operation {operation}, class {class}");
        }
    }
}
