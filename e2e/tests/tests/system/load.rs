//! The load for other tests keeps its rate and reports failures.

use std::{collections::BTreeSet, net::SocketAddr, thread::scope, time::Duration};

use localnet_e2e::load::{Answered, Connections, Load};
use localnet_lab::{Endpoint, Network, Probe, Protocol, Servers, Topology};

const POD: &str = "10.180.0.1";
const RATE: u32 = 200;

#[test]
fn a_load_keeps_its_rate_and_ends_with_the_first_failure() -> anyhow::Result<()> {
    let network = Network::build(Topology::with_pods([POD])?)?;
    let at = SocketAddr::new(POD.parse()?, 8080);
    let servers =
        Servers::start(&network, [Protocol::Tcp, Protocol::Udp].map(|protocol| Endpoint { protocol, address: at }))?;
    let client = network.client();
    let connections = |endpoints| Connections { source: None, to: vec![at], endpoints, rate: RATE };
    scope(|scope| {
        let tcp = Load::connections(scope, client, connections(BTreeSet::from([at])));
        let (udp, used) = Load::flows(scope, client, at, 3, Duration::from_millis(1))?;
        assert_eq!(used, BTreeSet::from([at]));
        client.probe_until(Probe::new(Protocol::Tcp, at), 200, |_| false)?;
        let (tcp, udp) = (tcp.finish()?, udp.finish()?);
        assert!(
            tcp.count as f64 >= tcp.took.as_secs_f64() * f64::from(RATE) && tcp.late < tcp.count && udp.count % 3 == 0,
            "{tcp}; {udp}"
        );
        let both = Answered::together([tcp, tcp]);
        assert_eq!((both.count, both.took), (2 * tcp.count, tcp.took));

        let fails = |endpoints: &[SocketAddr]| {
            let load = Load::connections(scope, client, connections(endpoints.iter().copied().collect()));
            format!("{:#}", load.finish().expect_err("it must fail"))
        };
        let wrong = fails(&[]);
        assert!(wrong.contains("10.180.0.1:8080 answered, which is none of"), "{wrong}");
        drop(servers);
        let refused = fails(&[at]);
        assert!(refused.contains("to 10.180.0.1:8080: connecting"), "{refused}");
        Ok(())
    })
}
