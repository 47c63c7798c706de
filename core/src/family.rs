//! [`Family`], and [`ByFamily`], which has one value for each family.

use std::{
    array,
    net::IpAddr,
    ops::{Index, IndexMut},
};

use serde::{Deserialize, Serialize};

crate::names! {
    /// An address family, named as in Kubernetes.
    #[derive(Serialize, Deserialize)]
    Family {
        /// IPv4.
        #[serde(rename = "ipv4")]
        V4 = "IPv4",
        /// IPv6.
        #[serde(rename = "ipv6")]
        V6 = "IPv6",
    }
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = Self::ALL;

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The other family.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// One value for each family, indexed by the family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByFamily<T>([T; 2]);

impl<T> ByFamily<T> {
    /// The value `v4` for IPv4, and the value `v6` for IPv6.
    pub const fn new(v4: T, v6: T) -> Self {
        Self([v4, v6])
    }

    /// Calls the function for each family, IPv4 first, and stores the values that it returns.
    pub fn from_fn(of: impl FnMut(Family) -> T) -> Self {
        Self(Family::BOTH.map(of))
    }

    /// The families with their values, IPv4 first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Family, &T)> {
        Family::BOTH.into_iter().zip(&self.0)
    }

    /// The families with mutable references to their values, IPv4 first.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (Family, &mut T)> {
        Family::BOTH.into_iter().zip(&mut self.0)
    }

    /// The values, IPv4 first.
    pub fn values(&self) -> &[T; 2] {
        &self.0
    }

    /// Mutable references to the values, IPv4 first.
    pub fn values_mut(&mut self) -> &mut [T; 2] {
        &mut self.0
    }

    /// Applies the function to both values.
    pub fn map<U>(self, to: impl FnMut(T) -> U) -> ByFamily<U> {
        ByFamily(self.0.map(to))
    }
}

impl<T> Index<Family> for ByFamily<T> {
    type Output = T;

    fn index(&self, family: Family) -> &T {
        &self.0[family as usize]
    }
}

impl<T> IndexMut<Family> for ByFamily<T> {
    fn index_mut(&mut self, family: Family) -> &mut T {
        &mut self.0[family as usize]
    }
}

impl<T> IntoIterator for ByFamily<T> {
    type Item = (Family, T);
    type IntoIter = std::iter::Zip<array::IntoIter<Family, 2>, array::IntoIter<T, 2>>;

    fn into_iter(self) -> Self::IntoIter {
        Family::BOTH.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_own_value() {
        let mut names = ByFamily::from_fn(Family::as_str);
        assert_eq!(names, ByFamily::new("IPv4", "IPv6"));
        names[Family::V6] = "six";
        assert_eq!(names.into_iter().collect::<Vec<_>>(), [(Family::V4, "IPv4"), (Family::V6, "six")]);
        assert_eq!(names.map(str::len).values(), &[4, 3]);
        for (family, name) in names.iter_mut() {
            *name = family.other().as_str();
        }
        assert!(names.iter().all(|(family, name)| names[family] == *name && *name == family.other().as_str()));
    }
}
