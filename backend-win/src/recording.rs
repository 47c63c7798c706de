//! An HNS in a file. `localnet-win inspect` prints it on the node, and `localnet --hns` reads it on any machine.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Kernel, Options,
    hcn::{
        Failure, Guid, Hcn, Kind,
        schema::{self, Query},
    },
    inventory,
};

/// What HNS held on a node, and the options of the backend there. It answers like HNS, and refuses changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Recording {
    /// The version of HNS.
    version: Value,
    /// The options of the backend.
    pub options: Options,
    /// The hardware addresses of the node's interfaces, by IP address.
    interfaces: BTreeMap<IpAddr, String>,
    networks: Documents,
    endpoints: Documents,
    load_balancers: Documents,
}

/// Documents as HNS returned them, by identifier.
type Documents = BTreeMap<Guid, Value>;

/// `ERROR_NOT_FOUND`.
const NOT_FOUND: u32 = 0x8007_0490;
/// `E_NOTIMPL`.
const NOT_IMPLEMENTED: u32 = 0x8000_4001;
/// `HCN_E_INVALID_JSON`.
const INVALID_JSON: u32 = 0x803b_001b;

impl Recording {
    /// Reads everything that HNS holds.
    ///
    /// # Errors
    /// Returns an error if HNS does not answer, or if the interfaces of the node cannot be listed.
    pub fn of(kernel: &mut impl Kernel, options: Options) -> anyhow::Result<Self> {
        let mut documents = |kind| -> anyhow::Result<Documents> {
            let mut documents = Documents::new();
            for id in inventory::list(kernel, kind, &Query::all())? {
                if let Some(text) = inventory::properties(kernel, kind, id)? {
                    documents.insert(id, serde_json::from_str(&text).unwrap_or(Value::String(text)));
                }
            }
            Ok(documents)
        };
        Ok(Self {
            networks: documents(Kind::Network)?,
            endpoints: documents(Kind::Endpoint)?,
            load_balancers: documents(Kind::LoadBalancer)?,
            version: schema::read("version", &kernel.version()?)?,
            options,
            interfaces: kernel.interfaces()?,
        })
    }

    /// Parses a recording. The consoles of Windows may write it as UTF-16.
    ///
    /// # Errors
    /// Returns an error if the text is no recording.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let text = match bytes {
            [0xff, 0xfe, rest @ ..] => {
                let units = rest.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                String::from_utf16(&units.collect::<Vec<_>>()).context("not UTF-16")?
            }
            [0xef, 0xbb, 0xbf, rest @ ..] | rest => String::from_utf8(rest.to_vec()).context("not UTF-8")?,
        };
        serde_json::from_str(&text).context("not the output of localnet-win inspect")
    }

    /// The recording as JSON that contains only ASCII characters, so that a console with another code page keeps it intact.
    pub fn text(&self) -> String {
        let json =
            serde_json::to_string_pretty(self).expect("its maps have strings as keys, and nothing else can fail");
        let mut text = String::new();
        for character in json.chars() {
            if character.is_ascii() {
                text.push(character);
                continue;
            }
            // Only strings contain such characters. Writing to a string cannot fail.
            character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(text, "\\u{unit:04x}"));
        }
        text.push('\n');
        text
    }

    fn documents(&self, kind: Kind) -> &Documents {
        match kind {
            Kind::Network => &self.networks,
            Kind::Endpoint => &self.endpoints,
            Kind::LoadBalancer => &self.load_balancers,
        }
    }
}

fn unchangeable<T>(call: &'static str) -> Result<T, Failure> {
    Err(Failure::new(call, NOT_IMPLEMENTED, "a recording of HNS cannot be changed".to_owned()))
}

impl Hcn for Recording {
    fn version(&mut self) -> Result<String, Failure> {
        Ok(self.version.to_string())
    }

    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Failure> {
        let documents = self.documents(kind).iter().map(|(id, document)| (*id, document));
        schema::answer(query, documents).map_err(|odd| Failure::new("HcnEnumerate", INVALID_JSON, odd.to_string()))
    }

    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure> {
        let found = self.documents(kind).get(&id).map(Value::to_string);
        found.ok_or_else(|| Failure::new("HcnOpen", NOT_FOUND, format!("the recording does not contain {id}")))
    }

    fn create_endpoint(&mut self, _: Guid, _: Guid, _: &str) -> Result<String, Failure> {
        unchangeable("HcnCreateEndpoint")
    }

    fn create_load_balancer(&mut self, _: Guid, _: &str) -> Result<String, Failure> {
        unchangeable("HcnCreateLoadBalancer")
    }

    fn modify_load_balancer(&mut self, _: Guid, _: &str) -> Result<String, Failure> {
        unchangeable("HcnModifyLoadBalancer")
    }

    fn delete_endpoint(&mut self, _: Guid) -> Result<(), Failure> {
        unchangeable("HcnDeleteEndpoint")
    }

    fn delete_load_balancer(&mut self, _: Guid) -> Result<(), Failure> {
        unchangeable("HcnDeleteLoadBalancer")
    }
}

impl Kernel for Recording {
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        Ok(self.interfaces.clone())
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::Config;
    use localnet_proto::{Changes, Snapshot};

    use super::*;
    use crate::{WinBackend, testing::FakeHcn};

    const STATE: &str = "{node: {name: n, addresses: [192.168.0.2]}, services: [
        {service: default/web, type: ClusterIP, clusterIPs: [172.30.0.1], ports: [{name: http, protocol: TCP, port: 80}], endpoints: [
         {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true}},
         {address: 10.180.1.2, ports: [{name: http, port: 8080}], scopes: {internal: true}}]}]}";

    fn recording() -> Recording {
        let mut fake = FakeHcn::with_network(
            "Ethern\u{e9}t \u{1f600}",
            "Overlay",
            &[("10.180.1.0/24", "192.168.0.3")],
            &["10.180.0.1"],
        );
        fake.add_network("nat", "NAT", &[]);
        fake.add_pod("nat", "10.180.0.1");
        fake.interfaces = [([192, 168, 0, 2].into(), "00-15-5d-00-00-02".to_owned())].into();
        let source_vip = Some([10, 180, 0, 250].into());
        Recording::of(&mut fake, Options { source_vip, ..Options::default() }).unwrap()
    }

    #[test]
    fn a_recording_survives_the_consoles_of_windows() {
        let recording = recording();
        let text = recording.text();
        assert!(text.is_ascii() && text.contains("Ethern\\u00e9t \\ud83d\\ude00"), "{text}");
        let lines = text.replace('\n', "\r\n");
        let wide: Vec<u8> = lines.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [
            text.clone().into_bytes(),
            [&[0xef, 0xbb, 0xbf], lines.as_bytes()].concat(),
            [&[0xff, 0xfe], wide.as_slice()].concat(),
        ] {
            assert_eq!(Recording::parse(&bytes).unwrap(), recording);
        }
        for bytes in [&b"{}"[..], b"10.96.0.1 TCP 80 -> 10.0.0.1:80", b"\xff"] {
            Recording::parse(bytes).unwrap_err();
        }
    }

    /// A network with pods of the same addresses, which is not the network of the pods, shows that queries are filtered.
    #[test]
    fn a_recording_leads_to_the_plan_of_the_node() {
        let recording = recording();
        let state: Snapshot = serde_saphyr::from_str(STATE).unwrap();
        let options = recording.options.clone();
        let mut backend = WinBackend::new(Config::default(), options, recording);
        let (plan, skipped) = backend.plan(&state, &Changes::everything()).unwrap();
        assert_eq!((plan.balancers.len(), plan.endpoints.len(), skipped.len()), (1, 3, 0), "{plan:?}");
        let failed = backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap_err();
        assert!(format!("{failed:#}").contains("cannot be changed"), "{failed:#}");
    }
}
