//! `localnet explain`.

use std::path::PathBuf;

use clap::Args;
use localnet_client::route;
use localnet_proto::Family;

use super::{Answered, Failure, Global, OfNode, Output, World, ask_status};
use crate::{
    answer::Answer,
    evidence::Evidence,
    explain::{self, Explanation, Many},
    inspect::Inspected,
    peer::Peer,
    question::{self, From as Sender, To},
    source::text_of,
    why_not,
};

/// Explain what happens to a packet and why, or why a Service does not answer
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet explain --from 10.244.0.7 --to shop/web:http
  localnet explain --from outside:203.0.113.9 --to 192.0.2.10:443
  localnet explain --from node --to 10.96.0.10:53/udp -o json
  localnet explain --from pod --to shop/web:80 --at 03:12
  localnet explain --why-not shop/web:80
  localnet explain --why-not shop/web:80 --from outside:203.0.113.9 --to 192.0.2.10:443

--from: an address, pod, pod:ADDRESS, node, outside or outside:ADDRESS
--to:   ADDRESS:PORT or NAMESPACE/SERVICE:PORT, each followed by /udp or /sctp if it is not TCP")]
pub(crate) struct Explain {
    /// Sender of the packet [default: a pod of this node for ClusterIPs, an outside client for other addresses]
    #[arg(long, value_name = "SENDER", required_unless_present_any = ["why_not", "packets"])]
    from: Option<Sender>,
    /// Destination of the packet
    #[arg(long, value_name = "DESTINATION", required_unless_present_any = ["why_not", "packets"])]
    to: Option<To>,
    /// Explain why this port of a Service does not answer, likeliest cause first
    #[arg(long, value_name = "SERVICE:PORT", conflicts_with = "packets")]
    why_not: Option<To>,
    /// Explain each packet in a file, using only the state; each line is SENDER DESTINATION; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    packets: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

pub(super) async fn run(flags: Explain, global: &Global) -> Answered {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    if let Some(why_not) = flags.why_not {
        let question = why_not::Question::new(why_not, flags.from, flags.to.as_ref()).map_err(Failure::Usage)?;
        let evidence = match global.snapshot(brain).await {
            Ok(state) => {
                let status = ask_status(global, brain).await;
                let mut world = flags.node.world(global, brain, &status, state).await?;
                why_not::gather(&mut world, &question, global.reasoning(brain), status.ok()).await
            }
            Err(failure) => Evidence {
                service: question.service,
                port: question.port,
                no_state: Some(failure.to_string()),
                status: match brain {
                    Some(brain) => global.status(brain).await.ok(),
                    None => return Err(failure),
                },
                ..Evidence::default()
            },
        };
        let answer = Answer::of(&evidence);
        flags.output.print(global, &answer)?;
        return Ok(!answer.causes.is_empty());
    }
    let state = global.snapshot(brain).await?;
    let mut world = flags.node.world(global, brain, &ask_status(global, brain).await, state).await?;
    if let Some(path) = &flags.packets {
        let many = many(&world, &text_of(path)?).await?;
        flags.output.print(global, &many)?;
        return Ok(many.0.iter().any(|one| one.outcome != "endpoints"));
    }
    let (Some(from), Some(to)) = (flags.from, &flags.to) else {
        return Err(Failure::Usage("--from and --to are both required".to_owned()));
    };
    let explanation = in_world(&mut world, global.reasoning(brain), from, to).await?;
    flags.output.print(global, &explanation)?;
    Ok(!explanation.arrives())
}

/// Explains a packet in the newest state, for other commands.
pub(super) async fn packet_explained(
    node: &OfNode,
    global: &Global,
    brain: Option<&Peer>,
    from: Sender,
    to: &To,
) -> Result<Explanation, Failure> {
    let state = global.snapshot(brain).await?;
    let mut world = node.world(global, brain, &ask_status(global, brain).await, state).await?;
    in_world(&mut world, global.reasoning(brain), from, to).await
}

/// Explains a packet with all evidence.
async fn in_world(world: &mut World, brain: Option<&Peer>, from: Sender, to: &To) -> Result<Explanation, Failure> {
    let (packet, has_source) = packet(world, from, to).await?;
    let mut explanation = explain::explain(world, brain, packet, has_source).await;
    if let Some(backend) = Inspected::of(world) {
        (explanation.path, explanation.kernel_unknown) = backend.path(world, &packet).await;
    }
    if let Some(maps) = Inspected::beside(world).filter(|_| packet.origin != route::Origin::Outside) {
        match maps.path(world, &packet).await {
            (_, Some(unknown)) => explanation.kernel_unknown = Some(unknown),
            // The rules of the other backend serve this packet.
            (path, None) if path.is_empty() => {}
            (path, None) => explanation.path = path,
        }
    }
    Ok(explanation)
}

/// Returns the packet of a question, and whether the packet's source is known.
async fn packet(world: &World, from: Sender, to: &To) -> Result<(route::Packet, bool), Failure> {
    let destination = question::destination(to, from.address().map(Family::of), &world.state);
    let destination =
        destination.map_err(|no| Failure::Missing(format!("{no}; localnet explain --why-not shows the cause")))?;
    if let Some(source) = from.address().filter(|source| source.is_ipv4() != destination.0.is_ipv4()) {
        return Err(Failure::Usage(format!(
            "the sender {source} and the destination {} are of different address families",
            destination.0
        )));
    }
    let packet = world.packet(from, destination).await;
    Ok((packet, from.address().is_some() || from == Sender::Node))
}

/// Computes the outcome for each packet in the text of `--packets`.
async fn many(world: &World, text: &str) -> Result<Many, Failure> {
    let mut explanations = Vec::new();
    for (packet, has_source) in listed(world, text).await? {
        let mut one = explain::from_state(world, &world.judge(packet));
        if !has_source {
            one.from = String::new();
        }
        explanations.push(one);
    }
    Ok(Many(explanations))
}

/// Reads the packets in the text of `--packets`, and whether the source of each is known.
pub(super) async fn listed(world: &World, text: &str) -> Result<Vec<(route::Packet, bool)>, Failure> {
    let mut packets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let wrong = |why: String| Failure::Usage(format!("line {number}: {why}"));
        let (from, to) = match words[..] {
            [] => continue,
            [from, to] => (from.parse::<Sender>().map_err(wrong)?, to.parse::<To>().map_err(wrong)?),
            _ => return Err(wrong("expected a sender and a destination".to_owned())),
        };
        packets.push(packet(world, from, &to).await?);
    }
    Ok(packets)
}
