//! A codec for answers whose items are already serialized. It decodes requests, which are small.

use std::marker::PhantomData;

use bytes::{BufMut as _, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::Grpc,
};
use tonic_prost::ProstDecoder;

/// Maximum size of a request, in bytes. A request contains only a revision and a node name.
const LARGEST_REQUEST: usize = 4 << 10;

/// Size of the buffer for a request, in bytes. It grows if a request is larger.
const REQUEST: usize = 64;

/// A gRPC handler for requests of type `R` that uses this codec.
pub(super) fn grpc<R: Message + Default + Send + 'static>() -> Grpc<Verbatim<R>> {
    grpc_with(LARGEST_REQUEST)
}

/// The same for requests of at most `largest` bytes.
pub(super) fn grpc_with<R: Message + Default + Send + 'static>(largest: usize) -> Grpc<Verbatim<R>> {
    Grpc::new(Verbatim(PhantomData)).max_decoding_message_size(largest)
}

/// A codec that decodes messages of type `R` and sends serialized ones unchanged.
#[derive(Debug)]
pub(super) struct Verbatim<R>(PhantomData<fn() -> R>);

impl<R: Message + Default + Send + 'static> Codec for Verbatim<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = CopyEncoder;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Self::Encoder {
        CopyEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        // tonic allocates a buffer of this size for each call that waits for its request. The default is 8 KiB.
        ProstDecoder::new(BufferSettings::new(REQUEST, REQUEST))
    }
}

/// How many bytes of an answer are joined into one HTTP/2 data frame. One such frame can be in memory in addition to the
/// send buffer of the stream.
const CHUNK: usize = 2 << 10;

/// An encoder that copies bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyEncoder;

impl Encoder for CopyEncoder {
    type Item = Bytes;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        // Each call that waits for a state holds a buffer of 512 bytes. The second value is the size at which tonic
        // sends.
        BufferSettings::new(512, CHUNK - CHUNK / 4)
    }

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // Reserve a whole chunk. Otherwise the buffer would double as it grows, and would keep twice the memory of the
        // bytes that it sends.
        if buffer.chunk_mut().len() < item.len() {
            buffer.reserve(item.len().max(CHUNK));
        }
        buffer.put(item);
        Ok(())
    }
}
