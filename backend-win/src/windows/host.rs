//! The HNS of this node, called through `computenetwork.dll`.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::Context as _;
use localnet_hcn::{Deletable, LoadError};

use crate::{
    hcn::{
        Failure, Guid, Hcn, Kind,
        schema::{self, Query},
        version,
    },
    kernel::{Kernel, Machine},
};

/// The HNS of this node.
#[derive(Debug)]
pub struct Host(localnet_hcn::Hcn);

fn kind(kind: Kind) -> localnet_hcn::Kind {
    match kind {
        Kind::Network => localnet_hcn::Kind::Network,
        Kind::Endpoint => localnet_hcn::Kind::Endpoint,
        Kind::LoadBalancer => localnet_hcn::Kind::LoadBalancer,
    }
}

fn failed(failure: localnet_hcn::Failure) -> Failure {
    let localnet_hcn::Failure { call, hresult, record } = failure;
    Failure { call, hresult, record }
}

/// Converts a load error. System error codes are HRESULTs of facility 7.
fn unloaded(error: &LoadError) -> Failure {
    Failure::new("HNSCall", 0x8007_0000 | (error.code & 0xffff), error.to_string())
}

/// Returns the query for all properties of an object.
fn all() -> String {
    schema::write(&Query::all())
}

impl Hcn for Host {
    fn version(&mut self) -> Result<String, Failure> {
        let response = self.0.get("/globals/version").map_err(|error| unloaded(&error))?.map_err(failed)?;
        version::output(response)
    }

    fn enumerate(&mut self, of: Kind, query: &str) -> Result<String, Failure> {
        self.0.enumerate(kind(of), query).map_err(failed)
    }

    fn properties(&mut self, of: Kind, id: Guid) -> Result<String, Failure> {
        self.0.properties(kind(of), id.number(), &all()).map_err(failed)
    }

    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure> {
        self.0.create_endpoint(network.number(), id.number(), settings, &all()).map_err(failed)
    }

    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        self.0.create_load_balancer(id.number(), settings, &all()).map_err(failed)
    }

    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        self.0.modify_load_balancer(id.number(), settings, &all()).map_err(failed)
    }

    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure> {
        self.0.delete(Deletable::Endpoint, id.number()).map_err(failed)
    }

    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure> {
        self.0.delete(Deletable::LoadBalancer, id.number()).map_err(failed)
    }
}

impl Kernel for Host {
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        let adapters = ipconfig::get_adapters().context("failed to list the interfaces of this node")?;
        let mut interfaces = BTreeMap::new();
        for adapter in &adapters {
            let Some(bytes) = adapter.physical_address() else { continue };
            let mac = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join("-");
            interfaces.extend(adapter.ip_addresses().iter().map(|address| (*address, mac.clone())));
        }
        Ok(interfaces)
    }
}

impl Machine for Host {
    fn open() -> anyhow::Result<Self> {
        localnet_hcn::Hcn::load().map(Self).context("open HNS")
    }
}
