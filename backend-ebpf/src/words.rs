//! [`Words`]: the keys and values of the maps as arrays of 32-bit words, in the memory order of [`crate::layout`]. Pure.

use crate::layout::{EndpointKey, Endpoints, MemberKey, OriginKey, Socket, Vip, VipKey};

/// A key or value that consists of `N` words.
pub(crate) trait Words<const N: usize> {
    /// The words.
    fn words(&self) -> [u32; N];
    /// The key or value of these words.
    fn from_words(words: [u32; N]) -> Self;
}

/// An entry of a map, decoded.
pub(crate) fn decoded<const K: usize, const V: usize, Key: Words<K>, Value: Words<V>, E>(
    (key, value): ([u32; K], [u32; V]),
) -> Result<(Key, Value), E> {
    Ok((Key::from_words(key), Value::from_words(value)))
}

impl Words<5> for Socket {
    fn words(&self) -> [u32; 5] {
        let [a, b, c, d] = self.address;
        [a, b, c, d, self.port]
    }

    fn from_words([a, b, c, d, port]: [u32; 5]) -> Self {
        Self { address: [a, b, c, d], port }
    }
}

impl Words<20> for Endpoints {
    fn words(&self) -> [u32; 20] {
        let mut words = [0; 20];
        words.chunks_exact_mut(5).zip(self).for_each(|(words, socket)| words.copy_from_slice(&socket.words()));
        words
    }

    fn from_words(words: [u32; 20]) -> Self {
        let (sockets, _) = words.as_chunks();
        std::array::from_fn(|index| Socket::from_words(sockets[index]))
    }
}

impl Words<6> for VipKey {
    fn words(&self) -> [u32; 6] {
        let [a, b, c, d, port] = self.to.words();
        [a, b, c, d, port, self.protocol]
    }

    fn from_words([a, b, c, d, port, protocol]: [u32; 6]) -> Self {
        Self { to: Socket { address: [a, b, c, d], port }, protocol }
    }
}

impl Words<8> for Vip {
    fn words(&self) -> [u32; 8] {
        let [a, b, c, d] = self.port;
        [a, b, c, d, self.scope, self.endpoints, self.affinity, self.when_empty]
    }

    fn from_words([a, b, c, d, scope, endpoints, affinity, when_empty]: [u32; 8]) -> Self {
        Self { port: [a, b, c, d], scope, endpoints, affinity, when_empty }
    }
}

impl Words<6> for EndpointKey {
    fn words(&self) -> [u32; 6] {
        let [a, b, c, d] = self.port;
        [a, b, c, d, self.scope, self.group]
    }

    fn from_words([a, b, c, d, scope, group]: [u32; 6]) -> Self {
        Self { port: [a, b, c, d], scope, group }
    }
}

impl Words<10> for MemberKey {
    fn words(&self) -> [u32; 10] {
        let ([a, b, c, d], [e, f, g, h, port]) = (self.port, self.endpoint.words());
        [a, b, c, d, self.scope, e, f, g, h, port]
    }

    fn from_words([a, b, c, d, scope, e, f, g, h, port]: [u32; 10]) -> Self {
        Self { port: [a, b, c, d], scope, endpoint: Socket { address: [e, f, g, h], port } }
    }
}

impl Words<8> for OriginKey {
    fn words(&self) -> [u32; 8] {
        let ([a, b, c, d, port], [low, high]) = (self.endpoint.words(), halves(self.cookie));
        [low, high, a, b, c, d, port, self.protocol]
    }

    fn from_words([low, high, a, b, c, d, port, protocol]: [u32; 8]) -> Self {
        let cookie = u64::from(high) << 32 | u64::from(low);
        Self { cookie, endpoint: Socket { address: [a, b, c, d], port }, protocol }
    }
}

/// The two words of a 64-bit number, as a little-endian processor stores them. The object file is for such processors.
fn halves(number: u64) -> [u32; 2] {
    [0, 32].map(|shift| u32::try_from(number >> shift & u64::from(u32::MAX)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn check<const N: usize, T: Words<N> + Debug + PartialEq>() {
        let words: [u32; N] = std::array::from_fn(|index| u32::try_from(index).unwrap() + 1);
        let value = T::from_words(words);
        assert_eq!(value.words(), words);
        assert_eq!(size_of::<T>(), 4 * N, "the words are all bytes of the value");
        // The derived `Debug` lists the fields in memory order, so each word is the field at the same place.
        let text = format!("{value:?}");
        let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
        assert_eq!(numbers.collect::<Vec<_>>(), words);
    }

    #[test]
    fn words_have_the_memory_order_of_the_layout() {
        check::<5, Socket>();
        check::<20, Endpoints>();
        check::<6, VipKey>();
        check::<8, Vip>();
        check::<6, EndpointKey>();
        check::<10, MemberKey>();
        let words = [1, 2, 3, 4, 5, 6, 7, 8];
        let key = OriginKey::from_words(words);
        assert_eq!((key.words(), key.cookie), (words, 2 << 32 | 1));
        assert_eq!(size_of::<OriginKey>(), 32);
    }
}
