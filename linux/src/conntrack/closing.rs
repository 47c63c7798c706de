//! [`Closing`]: decides which established TCP connections to close, because their endpoint stopped serving long enough ago. Only
//! Services that request this have such connections ([`Endpoints::close_after`]). Pure.
//!
//! Without the entry of a connection, its next packet meets the rules and goes to an endpoint that does not know the connection.
//! The endpoint answers with a reset, so the client learns at once what it otherwise learns after minutes, if at all.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::{Duration, Instant},
};

use localnet_core::{Family, Protocol};

use super::{Endpoints, Flow, Frontend, Frontends, Selection, Serving, Status};

/// When endpoints stopped serving, and when their connections have to be closed.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    /// The frontends whose connections are closed.
    frontends: HashMap<Frontend, Of>,
    began: Instant,
    /// The times at which connections of a family have to be closed.
    due: BTreeSet<(Instant, Family)>,
}

/// The connections of a frontend.
#[derive(Clone, Debug)]
struct Of {
    /// How long after their endpoint has stopped serving the connections are closed.
    after: Duration,
    /// When endpoints stopped serving. Others stopped before `began`.
    stopped: HashMap<SocketAddr, Instant>,
}

impl Closing {
    pub(super) fn new(began: Instant) -> Self {
        Self { frontends: HashMap::new(), began, due: BTreeSet::new() }
    }

    /// How long after an endpoint the connections of a frontend are closed; `None`: never.
    pub(super) fn after(&self, frontend: &Frontend) -> Option<Duration> {
        self.frontends.get(frontend).map(|of| of.after)
    }

    /// Records new endpoints of a frontend, which had the endpoints `before`; `None` if it did not exist. `after`: how long after their
    /// endpoint connections are closed.
    pub(super) fn set(
        &mut self,
        frontend: Frontend,
        before: Option<&Endpoints>,
        now: &Endpoints,
        after: Option<Duration>,
        at: Instant,
    ) {
        let Some(after) = after.filter(|_| frontend.protocol == Protocol::Tcp) else {
            self.remove(&frontend);
            return;
        };
        let family = Family::of(frontend.address.ip());
        let is_new = self.after(&frontend) != Some(after);
        let of = self.frontends.entry(frontend).or_insert_with(|| Of { after, stopped: HashMap::new() });
        of.after = after;
        of.stopped.retain(|endpoint, _| !now.contains(endpoint));
        for endpoint in before.into_iter().flat_map(Endpoints::iter).filter(|endpoint| !now.contains(endpoint)) {
            of.stopped.entry(*endpoint).or_insert(at);
            self.due.insert((at + after, family));
        }
        if is_new {
            // Endpoints may have stopped before, in this process or an earlier one.
            let began = of.stopped.values().copied().chain([self.began]);
            self.due.extend(began.map(|began| ((began + after).max(at), family)));
        }
    }

    /// Removes a frontend. Its connections stay.
    pub(super) fn remove(&mut self, frontend: &Frontend) {
        self.frontends.remove(frontend);
    }

    /// When to close connections next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The flows to read at this time.
    pub(super) fn selections(&self, now: Instant) -> impl Iterator<Item = Selection> {
        let due = self.due.iter().take_while(move |(at, _)| *at <= now);
        due.map(|(_, family)| Selection { family: *family, protocol: Protocol::Tcp, established: true })
    }

    /// Whether the connection has to be closed at this time.
    pub(super) fn closes(&self, flow: &Flow, frontends: &Frontends, now: Instant) -> bool {
        if flow.protocol != Protocol::Tcp || !flow.status.has(Status::DESTINATION_NAT) {
            return false;
        }
        let frontend = Frontend::new(flow.protocol, flow.original.destination);
        let Some(Serving::Now(endpoints)) = frontends.find(&frontend) else { return false };
        let Some(of) = self.frontends.get(&frontend).filter(|_| !endpoints.contains(&flow.reply.source)) else {
            return false;
        };
        now >= *of.stopped.get(&flow.reply.source).unwrap_or(&self.began) + of.after
    }

    /// Records that all connections that were due at this time are closed.
    pub(super) fn done(&mut self, now: Instant) {
        self.due.retain(|(at, _)| *at > now);
        // If the time of an endpoint has passed, that of `began` has passed, too.
        self.frontends.values_mut().for_each(|of| of.stopped.retain(|_, at| *at + of.after > now));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Stage::Answered, address, endpoints, flow, frontend};
    use super::*;

    const VIP: &str = "10.96.0.10:80";
    const AFTER: Duration = Duration::from_secs(30);

    fn serving(all: &[&str]) -> (Endpoints, Option<Duration>) {
        (endpoints(all), Some(AFTER))
    }

    struct World {
        frontends: Frontends,
        closing: Closing,
        began: Instant,
    }

    impl World {
        fn new() -> Self {
            let began = Instant::now();
            Self { frontends: Frontends::default(), closing: Closing::new(began), began }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        fn set(&mut self, seconds: u64, (endpoints, after): (Endpoints, Option<Duration>)) {
            let (frontend, at) = (frontend(Protocol::Tcp, VIP), self.at(seconds));
            let before = self.frontends.endpoints(&frontend).cloned();
            self.closing.set(frontend, before.as_ref(), &endpoints, after, at);
            self.frontends.set(frontend, endpoints);
        }

        /// Whether a connection to the endpoint is closed at this time, and whether flows are read then.
        fn closes(&mut self, seconds: u64, endpoint: &str) -> (bool, bool) {
            let now = self.at(seconds);
            let flow = flow(Protocol::Tcp, Answered, address(VIP), address(endpoint));
            let closes = self.closing.closes(&flow, &self.frontends, now);
            let reads = self.closing.selections(now).next().is_some();
            self.closing.done(now);
            (closes, reads)
        }
    }

    #[test]
    fn connections_close_some_time_after_their_endpoint_stopped() {
        let [a, b] = ["10.244.0.2:80", "10.244.0.3:80"];
        let mut world = World::new();
        world.set(0, serving(&[a, b]));
        assert_eq!(world.closes(30, a), (false, true), "endpoints of an earlier process are checked");
        world.set(100, serving(&[b]));
        assert_eq!(world.closes(129, a), (false, false));
        assert_eq!(world.closes(130, a), (true, true));
        assert_eq!(world.closes(131, b), (false, false));
        assert!(world.closes(131, "10.244.0.9:80").0, "an endpoint of an earlier process");
        // It serves again, and then stops again.
        world.set(200, serving(&[a, b]));
        assert_eq!(world.closes(201, a), (false, false));
        world.set(300, serving(&[b]));
        world.set(310, serving(&[]));
        assert_eq!((world.closes(330, a), world.closes(331, b)), ((true, true), (false, false)));
        assert_eq!(world.closes(340, b), (true, true));
    }

    #[test]
    fn a_service_that_requests_it_later_closes_what_has_been_waiting() {
        let a = "10.244.0.2:80";
        let mut world = World::new();
        world.set(0, (endpoints(&[a]), None));
        world.set(100, (endpoints(&[]), None));
        assert_eq!(world.closes(500, a), (false, false), "as kube-proxy does");
        world.set(600, serving(&[]));
        assert_eq!(world.closes(600, a), (true, true));
        world.set(601, (endpoints(&[]), None));
        assert_eq!(world.closes(700, a), (false, false));
    }

    #[test]
    fn other_flows_stay() {
        let mut world = World::new();
        world.set(0, serving(&[]));
        let now = world.at(60);
        let to = |vip: &str, endpoint: &str| flow(Protocol::Tcp, Answered, address(vip), address(endpoint));
        for (what, flow, expected) in [
            ("ours", to(VIP, "10.244.0.2:80"), true),
            ("not translated", to(VIP, VIP), false),
            ("another destination", to("10.96.0.11:80", "10.244.0.2:80"), false),
        ] {
            assert_eq!(world.closing.closes(&flow, &world.frontends, now), expected, "{what}");
        }
        world.frontends.retire(&frontend(Protocol::Tcp, VIP));
        assert!(!world.closing.closes(&to(VIP, "10.244.0.2:80"), &world.frontends, now), "a deleted Service");
    }
}
