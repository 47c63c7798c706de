//! Describes a difference: the packet, the three outcomes, and the objects of the Services involved.

use std::fmt::Write as _;

use super::{
    ask::{Asked, Seen},
    cluster::Service,
    pair::Side,
    scene::Scene,
};

impl Scene<'_> {
    pub(crate) fn describe(&self, asked: &Asked, seen: &[(Side, &Seen)]) -> String {
        let mut text = format!(
            "  cluster: SEED={}, after {} changes\n  node: {:?}, more ServiceCIDRs {:?}, as {}\n  packet: {}\n  oracle: {:?}\n",
            self.seed,
            self.changes,
            self.cluster.node,
            self.cluster.more_service_cidrs,
            self.setup,
            asked.question,
            asked.expected,
        );
        for (side, seen) in seen {
            let _ = writeln!(text, "  {side:?}: {seen}");
        }
        let to = asked.question.to.ip();
        let concerns = |service: &&Service| {
            service.name == asked.question.about
                || service.cluster_ips.iter().chain(&service.external_ips).any(|ip| *ip == to)
                || service.ingress.iter().any(|ingress| ingress.ip == to)
                || service.node_ports().any(|(_, number)| number == asked.question.to.port())
        };
        for service in self.cluster.services.values().filter(concerns) {
            let mut objects = vec![service.object()];
            objects[0]["status"] = service.status();
            objects.extend(service.slices.iter().map(|slice| slice.object(&service.name)));
            for object in objects {
                let yaml = serde_saphyr::to_string(&object).unwrap_or_else(|_| object.to_string());
                let _ = write!(text, "---\n{yaml}");
            }
            let before = self.before.services.values().find(|before| before.name == service.name);
            match before {
                None => text.push_str("--- it was not there before the last change\n"),
                Some(before) if before == service => text.push_str("--- the last change did not affect it\n"),
                Some(before) => {
                    let mut objects = vec![before.object()];
                    objects.extend(before.slices.iter().map(|slice| slice.object(&before.name)));
                    let lines = objects.iter().map(|object| format!("{object}\n")).collect::<String>();
                    let _ = write!(text, "--- before the last change:\n{lines}");
                }
            }
            let localized = self.state.services.values().find(|localized| *localized.key.name == *service.name);
            let yaml = localized.map(|localized| serde_saphyr::to_string(&**localized).unwrap_or_default());
            let _ = write!(text, "--- in the brain's state:\n{}", yaml.unwrap_or_else(|| "nothing\n".to_owned()));
        }
        text
    }
}
