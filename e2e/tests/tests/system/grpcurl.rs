//! grpcurl alone is enough to read the state of a node, by gRPC reflection.

use std::process::Command;

use localnet_controlplane::binary;
use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Network, Topology};

#[test]
fn grpcurl_prints_the_state_without_proto_files() -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    let programs = Programs::new()?;
    let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let _brain = programs.start_brain(network.node(), examples)?;
    let socket = programs.path().join("brain.sock");
    await_condition("the brain's socket", || socket.exists())?;

    let grpcurl = |arguments: &[&str]| -> anyhow::Result<String> {
        let mut command = Command::new(binary("grpcurl")?);
        let output = command.args(["-plaintext", "-unix"]).arg(&socket).args(arguments).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "grpcurl {arguments:?}: {error}{}", programs.log("localnet-brain"));
        Ok(String::from_utf8(output.stdout)?)
    };
    let state = grpcurl(&["localnetv1.Endpoints/Next"])?;
    let items: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&state).into_iter().collect::<Result<_, _>>()?;
    assert_eq!(items[0]["Next"]["Rev"], "1", "{state}");
    assert_eq!(items[1]["Node"]["Name"], "node-a");
    let names: Vec<_> = items[2..].iter().map(|item| item["Endpoints"]["Service"]["Name"].as_str()).collect();
    assert_eq!(names, [Some("nothing-here"), Some("web"), Some("dns")], "by namespace, then name");
    let web = &items[3]["Endpoints"];
    assert_eq!(web["Service"]["IPs"]["ClusterIPs"]["V4"][0], "172.30.0.10");
    assert_eq!(web["Endpoints"].as_array().map(Vec::len), Some(6));

    let listed = grpcurl(&["list"])?;
    for service in
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "localnetv1.Backends", "localnetv1.Endpoints"]
    {
        assert!(listed.lines().any(|line| line == service), "{service} is not listed:\n{listed}");
    }
    let described = grpcurl(&["describe", "localnetv1.NextFilter"])?;
    assert!(
        described.contains("A random number that the brain chooses at each start"),
        "without comments:\n{described}"
    );
    let health = grpcurl(&["grpc.health.v1.Health/Check"])?;
    assert!(health.contains("SERVING") && !health.contains("NOT_SERVING"), "{health}");
    Ok(())
}
