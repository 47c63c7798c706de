//! `localnet`: the command for the person who asks why a Service does not answer.
//!
//! ```text
//!  brain (socket, TCP) ─┐            ┌─► get, watch: what the state says
//!  saved state (file) ──┴─► source ──┼─► explain: oracle ─► path (what the kernel should hold) ─► kernel (whether it does)
//!  brain's reasons ──────────────────┤       └─► causes: what is wrong, the likeliest first
//!  kernel (netlink) ─────────────────┴─► diff, top, doctor
//! ```
//!
//! | file | step |
//! |---|---|
//! | [`args`] | the command line, exit codes |
//! | [`source`] | where the state comes from |
//! | [`configuration`] | which configuration answers are made with |
//! | [`output`], [`table`], [`json`], [`yaml`] | tables, JSON, YAML, names |
//! | [`time`] | points in time |
//! | [`list`], [`pieces`] | the same of long lists, by several threads |
//! | [`get`], [`watch`] | what the state says |
//! | [`question`] | who sends what where; pure |
//! | [`reasons`] | the brain's reasons and status as plain values; pure |
//! | [`path`] | which chains, rules and elements a packet meets; pure |
//! | [`explain`] | one packet, from the state to the kernel |
//! | [`causes`] | what is wrong, ranked; pure |
//! | [`why_not`] | gathers what [`causes`] judges |
//! | [`kernel`] | the only one that asks the kernel |
//! | [`diff`], [`top`], [`doctor`] | the node as a whole |
//!
//! It only reads: nothing here changes the state, the kernel or a flow.

pub mod args;
pub mod causes;
pub mod configuration;
pub mod diff;
pub mod doctor;
pub mod explain;
pub mod get;
pub mod json;
pub mod kernel;
pub mod list;
pub mod output;
pub mod path;
pub mod pieces;
pub mod question;
pub mod reasons;
pub mod source;
pub mod table;
pub mod time;
pub mod top;
pub mod watch;
pub mod why_not;
pub mod yaml;
