//! The weights of endpoints: the weight of the endpoint's slice, multiplied by the weight of its zone. Both come from annotations.

use std::sync::Arc;

use localnet_core::Code;

use super::Skips;
use crate::objects::{
    Parsed, SliceEndpoint, SliceObject,
    reduce::{MAX_WEIGHT, WEIGHT, ZONE_WEIGHTS},
};

/// The weight of slices and zones without an annotation.
const DEFAULT: u32 = 1;

/// The weights that a Service gives to zones.
pub(super) struct Weights<'a>(&'a [(Arc<str>, u32)]);

impl<'a> Weights<'a> {
    /// The weights of the Service whose diagnostics `skips` collects. Reports an annotation that is invalid.
    pub(super) fn of(skips: &mut Skips<'a>) -> Self {
        match skips.service.extensions.as_ref().and_then(|all| all.zone_weights.as_ref()) {
            None => Self(&[]),
            Some(Parsed::Good(weights)) => Self(weights),
            Some(Parsed::Bad(text)) => {
                let problem = format!("{text:?} is no list of zones and weights");
                let remedy =
                    format!("write it like eu-a=3,eu-b=1, with weights from 0 to {MAX_WEIGHT} and at most 64 zones");
                skips.service(Code::AnnotationInvalid, field(ZONE_WEIGHTS), problem, remedy);
                Self(&[])
            }
        }
    }

    /// The weight that the Service gives to the endpoint's zone. If a zone is listed twice, its first weight applies.
    pub(super) fn of_zone(&self, endpoint: &SliceEndpoint) -> u32 {
        let zone = endpoint.zone.as_deref();
        self.0.iter().find(|(name, _)| zone == Some(name)).map_or(DEFAULT, |(_, weight)| *weight)
    }
}

/// The weight that a slice gives to its endpoints. Reports an annotation that is invalid.
pub(super) fn of_slice(slice: &SliceObject, skips: &mut Skips<'_>) -> u32 {
    match &slice.weight {
        None => DEFAULT,
        Some(Parsed::Good(weight)) => *weight,
        Some(Parsed::Bad(text)) => {
            let remedy = format!("write a number from 0 to {MAX_WEIGHT}");
            let problem = format!("{text:?} is no weight");
            skips.slice(slice, Code::AnnotationInvalid, field(WEIGHT), problem, &remedy);
            DEFAULT
        }
    }
}

fn field(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}
