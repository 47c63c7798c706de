//! [`Statistics`]: reads the traffic that IPVS has counted.

use localnet_linux::{
    ipvs::{Error, Socket},
    traffic::{Reading, Source},
};

/// Reads the traffic of all destinations.
#[derive(Debug)]
pub(crate) struct Statistics {
    socket: Socket,
}

impl Statistics {
    /// Connects to the IPVS of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel has no IPVS.
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open()? })
    }
}

impl Source for Statistics {
    fn read(&mut self) -> anyhow::Result<Reading> {
        let mut reading = Reading::default();
        for server in self.socket.servers()? {
            let frontend = server.frontend;
            let of_server = self.socket.traffic(&frontend)?;
            reading.balanced.extend(of_server.into_iter().map(|(endpoint, total)| ((frontend, endpoint), total)));
        }
        Ok(reading)
    }
}
