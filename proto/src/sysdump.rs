//! The content of a sysdump, and its conversions to and from bytes and typed values.

use prost::Message as _;

pub use crate::sysdumpv1alpha1::*;
use crate::{
    decode::{Assembler, DecodeError},
    encode::state_items,
    model::Snapshot,
    update::Update,
};

impl Sysdump {
    /// Sets the state.
    pub fn set_state(&mut self, state: &Snapshot) {
        self.state = state_items(state);
    }

    /// The state.
    ///
    /// # Errors
    /// Returns an error if an item cannot be decoded, or if the items are no full state.
    pub fn state(&self) -> Result<Snapshot, DecodeError> {
        let mut assembler = Assembler::default();
        for item in &self.state {
            assembler.push_bytes(item.clone())?;
        }
        let mut state = Snapshot::default();
        match assembler.finish()? {
            Update::Full(full) => state = full,
            delta @ Update::Delta { .. } => _ = state.apply(delta),
        }
        Ok(state)
    }

    /// The serialized sysdump.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Decodes a serialized sysdump.
    ///
    /// # Errors
    /// Returns an error if the bytes are no sysdump.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        Self::decode(bytes)
    }
}
