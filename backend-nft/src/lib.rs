//! The nft backend: services and endpoints are elements of a constant number of sets and maps.

pub mod config;
pub mod desired;
pub mod plan;
pub mod table;
