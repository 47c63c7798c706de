//! A brain with `--draft-v1`: a reader of `localnet.v1` follows it beside one of `localnetv1`, and both have the same states.

use std::{fs, path::Path, time::Duration};

use hyper_util::rt::TokioIo;
use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{
    Facts, Revision, ServiceKey, Snapshot, Update,
    v1::{
        self, Answer, ErrorInfo,
        wire::{self, ErrorReason, MetadataSelector, NextStateRequest, state_service_client::StateServiceClient},
    },
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};

use super::{start_with, write_cluster};

/// Limit for each answer, so that a failing test does not hang.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes a `cluster.yaml` with the Service `shop/web`, whose endpoint `10.1.0.N` is the Pod `web-N`, for each of `pods`.
fn write(folder: &Path, tier: &str, pods: impl IntoIterator<Item = u8>) {
    let endpoint = |pod| {
        format!(
            "- {{addresses: [10.1.0.{pod}], nodeName: node-{}, zone: a, \
             targetRef: {{kind: Pod, namespace: shop, name: web-{pod}, uid: u{pod}}}}}\n",
            pod % 3
        )
    };
    let endpoints: String = pods.into_iter().map(endpoint).collect();
    let service = format!(
        "metadata: {{name: web, namespace: shop, uid: u, labels: {{tier: {tier}, secret: s}}, annotations: {{note: text}}}}\n\
         spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80, appProtocol: kubernetes.io/h2c}}]}}\n"
    );
    write_cluster(folder, &service, &endpoints);
}

/// A reader of `localnet.v1`.
struct Reader {
    client: StateServiceClient<Channel>,
    reader: v1::Reader,
    state: Snapshot,
}

impl Reader {
    async fn connect(socket: &Path) -> Self {
        let socket = socket.to_owned();
        let connect = move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        };
        let endpoint = Endpoint::from_static("http://brain");
        let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap();
        let client = StateServiceClient::new(channel);
        Self { client, reader: v1::Reader::default(), state: Snapshot::default() }
    }

    /// Reads the next answer, and returns its updates.
    async fn read(&mut self) -> Vec<wire::ServiceUpdate> {
        let metadata =
            MetadataSelector { label_keys: vec!["tier".to_owned()], annotation_keys: vec!["note".to_owned()] };
        let request = NextStateRequest {
            reader: Some(wire::Reader { name: "test".to_owned(), version: "1".to_owned(), ..wire::Reader::default() }),
            token: self.reader.token().to_owned(),
            metadata: Some(metadata),
            endpoint_details: true,
            ..NextStateRequest::default()
        };
        let answer = timeout(TIMEOUT, answer(&mut self.client, request)).await.expect("the state changes");
        let (answer, updates) = answer.unwrap();
        self.state.apply(self.reader.accept(answer).unwrap().unwrap());
        updates
    }

    /// The facts about the Service `shop/web`.
    fn facts(&self) -> Facts {
        self.state.services[&ServiceKey::new("shop", "web")].facts.as_deref().cloned().unwrap()
    }

    /// The state as readers of `localnetv1` get it.
    fn without_facts(&self) -> Snapshot {
        let mut state = self.state.clone();
        state.node.settings = None;
        state.services.values_mut().for_each(|service| std::sync::Arc::make_mut(service).facts = None);
        state
    }
}

/// The complete answer, and its updates.
async fn answer(
    client: &mut StateServiceClient<Channel>,
    request: NextStateRequest,
) -> Result<(Answer, Vec<wire::ServiceUpdate>), Status> {
    let mut stream = client.next_state(request).await?.into_inner();
    let (mut answer, mut updates) = (Answer::default(), Vec::new());
    while let Some(message) = stream.message().await? {
        updates.extend(message.services.clone());
        answer.push(message);
    }
    Ok((answer, updates))
}

/// The state of a reader of `localnetv1`.
async fn older(brain: &Brain) -> Snapshot {
    let Update::Full(state) = brain.next(Revision::default(), false).await.unwrap() else { panic!("the full state") };
    state
}

#[tokio::test]
async fn readers_of_both_packages_follow_a_brain() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), "one", 1..=200);
    let socket = folder.path().join("brain.sock");
    let listen = format!("unix://{}", socket.display());
    let flags = ["--draft-v1", "--publish-label=tier", "--publish-annotation=note"];
    let (program, mut lines) = start_with(folder.path(), &listen, &flags);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let (mut reader, brain) = (Reader::connect(&socket).await, Brain::new(listen.parse().unwrap(), None).unwrap());
    reader.read().await;
    assert_eq!(reader.without_facts(), older(&brain).await);
    let settings = reader.state.node.settings.as_ref().unwrap();
    // The Node has no addresses, so the brain does not know whether it runs there.
    assert_eq!(settings.node_port_cidrs, ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    assert_eq!(settings.masquerade_mark_bit, Some(14));
    let Facts { uid, app_protocols, labels, annotations, origins } = reader.facts();
    assert_eq!(&*uid, "u");
    assert_eq!(app_protocols, [("".into(), "kubernetes.io/h2c".into())].into());
    assert_eq!(
        (labels, annotations),
        ([("tier".into(), "one".into())].into(), [("note".into(), "text".into())].into())
    );
    let origin = |last: u8| {
        origins.iter().find(|((address, _), _)| *address == std::net::IpAddr::from([10, 1, 0, last])).unwrap().1
    };
    let target = origin(7).target.as_ref().unwrap();
    assert_eq!((&*origin(7).node, &*origin(7).zone, &*target.name, &*target.uid), ("node-1", "a", "web-7", "u7"));

    write(folder.path(), "one", (1..=200).filter(|pod| *pod != 9));
    let updates = reader.read().await;
    let gone = wire::EndpointKey { address: "10.1.0.9".to_owned(), ordinal: 0 };
    assert_eq!((updates.len(), &updates[0].service, &updates[0].endpoints[..]), (1, &None, &[][..]));
    assert_eq!(updates[0].removed_endpoints, [gone]);
    assert_eq!(reader.without_facts(), older(&brain).await);
    write(folder.path(), "one", 1..=200);
    let updates = reader.read().await;
    assert_eq!((updates.len(), updates[0].endpoints.len(), &updates[0].service), (1, 1, &None));
    assert_eq!(reader.without_facts(), older(&brain).await);
    write(folder.path(), "two", 1..=200);
    let updates = reader.read().await;
    assert_eq!(updates[0].service.as_ref().map(|service| &*service.labels["tier"]), Some("two"));
    assert!(updates.len() == 1 && updates[0].endpoints.is_empty());
    assert_eq!(reader.without_facts(), older(&brain).await);

    // The token of the old brain is unknown to the new one, so the reader gets the full state.
    drop(program);
    let (_program, mut lines) = start_with(folder.path(), &listen, &flags);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let before = reader.state.revision;
    reader = Reader { reader: reader.reader, state: reader.state, ..Reader::connect(&socket).await };
    assert_eq!(reader.read().await.iter().map(|update| update.endpoints.len()).sum::<usize>(), 200);
    assert_ne!(reader.state.revision.instance, before.instance);
    assert_eq!(reader.without_facts(), older(&brain).await);
}

/// A view of another node would stop after each call, because no stream of the reader keeps it.
#[tokio::test]
async fn the_draft_serves_only_the_node_of_the_brain() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), "one", [1]);
    let socket = folder.path().join("brain.sock");
    let flags = ["--draft-v1", "--serve-node=*"];
    let (_program, mut lines) = start_with(folder.path(), &format!("unix://{}", socket.display()), &flags);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let mut client = Reader::connect(&socket).await.client;
    let mut call = async |node: &str| {
        let request = NextStateRequest { node_name: node.to_owned(), ..NextStateRequest::default() };
        timeout(TIMEOUT, answer(&mut client, request)).await.unwrap().map(|(_, updates)| updates.len())
    };
    assert_eq!(call("Here").await.unwrap(), 1);
    let status = call("other").await.unwrap_err();
    let expected = ErrorInfo::new(ErrorReason::NodeNotServed).with("requestedNode", "other").with("node", "here");
    assert_eq!((status.code(), ErrorInfo::of(&status)), (Code::PermissionDenied, Some(expected)));
}

/// Also if the reader has had the full state before a Service becomes restricted.
#[tokio::test]
async fn the_log_names_a_reader_from_which_a_service_is_withheld() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), "one", [1]);
    let socket = folder.path().join("brain.sock");
    let flags = ["--draft-v1", "--publish-label=tier", "--publish-annotation=note"];
    let (_program, mut lines) = start_with(folder.path(), &format!("unix://{}", socket.display()), &flags);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let mut reader = Reader::connect(&socket).await;
    reader.read().await;
    let restricted = "status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}\n\
                      spec: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24], clusterIP:";
    let text = fs::read_to_string(folder.path().join("cluster.yaml")).unwrap().replace("spec: {clusterIP:", restricted);
    fs::write(folder.path().join("new"), text).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("cluster.yaml")).unwrap();
    assert!(reader.read().await[0].service.as_ref().unwrap().withheld);
    let warning = lines.find(|line| line["fields"]["withheld"] == 1).unwrap();
    assert_eq!((&warning["level"], &warning["fields"]["reader"]), (&"WARN".into(), &"test".into()));
    assert_eq!(warning["fields"]["services"], "shop/web");
}
