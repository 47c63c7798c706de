//! Sends what is serialized already, and reads requests, which are small.

use std::marker::PhantomData;

use bytes::{BufMut as _, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::Grpc,
};
use tonic_prost::ProstDecoder;

/// No request is longer: it names a state, or a node.
const LARGEST_REQUEST: usize = 4 << 10;

/// What calls with requests of one type are answered through.
pub(super) fn grpc<R: Message + Default + Send + 'static>() -> Grpc<Verbatim<R>> {
    Grpc::new(Verbatim(PhantomData)).max_decoding_message_size(LARGEST_REQUEST)
}

/// The codec.
#[derive(Debug)]
pub(super) struct Verbatim<R>(PhantomData<fn() -> R>);

impl<R: Message + Default + Send + 'static> Codec for Verbatim<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = Copied;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Self::Encoder {
        Copied
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

/// Bytes of an answer that are joined. One piece may be held beside what waits in the connection.
const PIECE: usize = 2 << 10;

/// Copies bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied;

impl Encoder for Copied {
    type Item = Bytes;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        // A reader that waits holds the first; the other is how much is joined before it is sent.
        BufferSettings::new(512, PIECE - PIECE / 4)
    }

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // Room for a whole piece at once: a buffer that doubles would keep twice of what waits to be sent.
        if buffer.chunk_mut().len() < item.len() {
            buffer.reserve(item.len().max(PIECE));
        }
        buffer.put(item);
        Ok(())
    }
}
