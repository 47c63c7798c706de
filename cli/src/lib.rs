//! `localnet`: the command-line tool that shows why a Service does not answer.
//!
//! ```text
//!  brain (socket, TCP) ─┐            ┌─► get, watch: print the state
//!  sysdump, state (file) ┴─► source ──┼─► explain: oracle ─► path (what the kernel should hold) ─► kernel (what it holds)
//!  brain's reasons ──────────────────┤       └─► causes: what is wrong, the likeliest first
//!  kernel (netlink) ─────────────────┴─► diff, top, doctor
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | [`args`] | the command line, with a file for each command |
//! | [`failure`] | the reasons why a command has no answer, and their exit codes |
//! | [`source`], [`peer`] | reads the state and everything else about a node from a brain, a sysdump or a file |
//! | [`configuration`] | selects the configuration that answers are computed with |
//! | [`origin`] | the origin and the values of a configuration, as answers show them; pure |
//! | [`output`] | prints tables, JSON, YAML and names |
//! | [`table`], [`style`] | lay out tables; pure |
//! | [`get`], [`watch`] | print the state and its changes |
//! | [`history`], [`moment`] | the last changes of the state, and how to go back to an earlier one |
//! | [`anonymise`] | replaces the names and addresses in a trace; pure |
//! | [`question`] | parses a sender and a destination into a packet; pure |
//! | [`status`] | the status of the brain and its backends as plain values; pure |
//! | [`path`] | the chains, rules and elements that a packet meets; pure |
//! | [`world`] | the evidence that answers are computed from, and the outcome that the state determines for a packet |
//! | [`flows`] | flows in connection tracking |
//! | [`traffic`] | the rates of the traffic that backends have counted; pure |
//! | [`hooks`] | the hooks of netfilter that a packet passes, and its destination at each; pure |
//! | [`explain`] | follows one packet from the state to the kernel |
//! | [`why_not`], [`evidence`] | gathers the evidence about a Service that does not answer |
//! | [`causes`], [`answer`] | ranks what is wrong, and prints it; pure |
//! | [`diagnostics`] | what both `--why-not` and `doctor` may find; pure |
//! | [`kernel`] | reads the kernel: our rules if the backend is nft, and everything else |
//! | [`inspect`] | reads the plan and the rules of the other backends |
//! | [`dumped`] | compares the output of a backend's command `dump` with the state; pure |
//! | [`diff`], [`top`], [`doctor`] | check the node as a whole |
//! | [`ui`] | serves a page about the node |
//! | [`shadow`] | compares kube-proxy's rules with what localnet would do |
//! | [`canary`] | the command of kubectl that moves Services between kube-proxy and localnet; pure |
//! | [`takeover`] | the commands of kubectl that move a node from kube-proxy to localnet, and back; pure |
//!
//! Only `replay --backend` changes the kernel, and only `canary`, `takeover` and `give-back` change the cluster. All other commands only read.

pub mod anonymise;
pub mod answer;
pub mod args;
pub mod canary;
pub mod causes;
pub mod configuration;
pub mod diagnostics;
pub mod diff;
pub mod doctor;
pub mod dumped;
pub mod evidence;
pub mod explain;
pub mod failure;
pub mod flows;
pub mod get;
pub mod history;
pub mod hooks;
pub mod inspect;
pub mod kernel;
pub mod listings;
pub mod moment;
pub mod origin;
pub mod output;
pub mod path;
pub mod peer;
pub mod question;
pub mod shadow;
pub mod source;
pub mod status;
pub mod style;
pub mod table;
pub mod takeover;
pub mod top;
pub mod traffic;
pub mod ui;
pub mod watch;
pub mod why_not;
pub mod world;
