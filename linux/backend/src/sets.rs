//! The sets and maps of a backend's table. Services are elements of the sets, so the number of sets does not depend on
//! the number of Services.

use std::fmt::Debug;

use localnet_linux::nft::{Field, FieldType, Set, Table};
use localnet_proto::Family;

/// One of the sets and maps of a table.
pub trait Sets: Copy + Ord + Debug + Send + Sync + 'static {
    /// The name of the table.
    const TABLE: &'static str;

    /// The sets and maps in the order of their declaration, each with its name in the kernel, its fields, and its purpose, which
    /// `nft list` shows.
    const ALL: &'static [(Self, &'static str, Shape, &'static str)];

    /// The position in [`Self::ALL`].
    fn index(self) -> usize;

    /// The name in the kernel.
    fn name(self) -> &'static str {
        Self::ALL[self.index()].1
    }

    /// The set with that name.
    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, of, ..)| *of == name).map(|row| row.0)
    }

    /// The declaration in a family's table, with room for `size` elements.
    fn declaration(self, family: Family, size: u32) -> Set {
        let (_, name, shape, purpose) = Self::ALL[self.index()];
        shape.declaration(name, family).size(size).comment(purpose)
    }

    /// Whether the set exists only while the table has numbered sets ([`Self::numbered`]).
    fn is_optional(self) -> bool {
        false
    }

    /// The set with this number. A table may have a series of such sets, numbered from 0. Rules add the elements of these sets,
    /// and the length of the series varies. `None` if the table has no such series.
    fn numbered(_family: Family, _number: u32) -> Option<Set> {
        None
    }

    /// The number of the numbered set with that name.
    fn number_of(_name: &str) -> Option<u32> {
        None
    }

    /// The sets in which rules count packets. They exist while the table counts, and have other names than all other sets.
    fn counting(_family: Family) -> Vec<Set> {
        Vec::new()
    }

    /// The table of a family.
    fn table(family: Family) -> Table {
        Table::new(family, Self::TABLE)
    }

    /// The table that processes a family's packets while the family's own table is replaced. It is used if the family's
    /// table is too large for one commit.
    fn substitute(_family: Family) -> Option<Table> {
        None
    }
}

/// Declares the sets and maps of a table: an enum that implements [`Sets`](crate::sets::Sets). A row has the variant, its fields, its name in
/// the kernel, and its purpose. Other methods of the trait may follow the rows.
#[macro_export]
macro_rules! sets {
    (
        $set:ident of $table:path {
            $($(#[doc = $doc:literal])* $id:ident: $shape:ident = $name:literal, $purpose:literal;)*
        }
        $($method:tt)*
    ) => {
        /// One of the sets and maps of a table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $set {
            $(#[doc = concat!($purpose, ".")] $(#[doc = $doc])* $id,)*
        }

        impl $crate::sets::Sets for $set {
            const TABLE: &'static str = $table;
            const ALL: &'static [(Self, &'static str, $crate::sets::Shape, &'static str)] =
                &[$((Self::$id, $name, $crate::sets::Shape::$shape, $purpose)),*];

            fn index(self) -> usize {
                self as usize
            }

            $($method)*
        }
    };
}

/// The fields of a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Addresses.
    Addresses,
    /// VIPs.
    Vips,
    /// VIP → verdict.
    VipToVerdict,
    /// VIP → number.
    VipToNumber,
    /// VIPs, each with a number.
    Numbered,
    /// Number → verdict.
    NumberToVerdict,
    /// VIP and number → verdict.
    NumberedToVerdict,
    /// VIP and number → endpoint.
    NumberedToEndpoint,
    /// VIPs, each with a range of source addresses.
    Sources,
    /// Connections of endpoints to themselves.
    Hairpins,
}

impl Shape {
    /// Whether the key begins with a VIP, or with its address.
    pub fn has_vip(self) -> bool {
        !matches!(self, Self::Hairpins | Self::NumberToVerdict)
    }
}

impl Shape {
    fn declaration(self, name: &str, family: Family) -> Set {
        let address = FieldType::address(family);
        let vip = [address, FieldType::InetProto, FieldType::InetService];
        let with = |field| [vip.as_slice(), &[field]].concat();
        match self {
            Self::Addresses => Set::new(name, [address]),
            Self::Vips => Set::new(name, vip),
            Self::VipToVerdict => Set::verdict_map(name, vip),
            Self::VipToNumber => Set::map(name, vip, [FieldType::Priority]),
            Self::Numbered => Set::new(name, with(FieldType::Index)),
            Self::NumberToVerdict => Set::verdict_map(name, [FieldType::Priority]),
            Self::NumberedToVerdict => Set::verdict_map(name, with(FieldType::Index)),
            Self::NumberedToEndpoint => Set::map(name, with(FieldType::Index), [address, FieldType::InetService]),
            Self::Sources => Set::new(name, with(address)).interval(),
            Self::Hairpins => Set::new(name, [address, address, FieldType::InetProto, FieldType::InetService]),
        }
    }
}

/// The packet fields that form the key of a VIP.
pub const VIP: [Field; 3] = [Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
/// The packet fields that form the key of a hairpin connection.
pub const HAIRPIN: [Field; 4] =
    [Field::SourceAddress, Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
