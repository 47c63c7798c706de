//! The nft backend: services and endpoints as elements of a constant number of maps.
