//! The first bytes of a connection say that the peer speaks HTTP/2. They are waited for here, where there is a deadline, and
//! then read once more by who speaks it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::listen::Io;

/// RFC 9113 §3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose peer speaks HTTP/2.
pub(super) struct Greeted<I> {
    io: I,
    /// How much of the greeting has been read once more.
    repeated: usize,
}

impl<I: Io> Greeted<I> {
    /// Waits for the greeting. The first byte that does not belong to it is an error.
    pub(super) async fn greet(mut io: I) -> io::Result<Self> {
        let mut received = [0; PREFACE.len()];
        let mut length = 0;
        while length < PREFACE.len() {
            let read = io.read(&mut received[length..]).await?;
            length += read;
            if read == 0 || received[..length] != PREFACE[..length] {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak HTTP/2"));
            }
        }
        Ok(Self { io, repeated: 0 })
    }
}

impl<I: Io> AsyncRead for Greeted<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.repeated..];
        if rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let piece = &rest[..rest.len().min(buffer.remaining())];
        buffer.put_slice(piece);
        self.repeated += piece.len();
        Poll::Ready(Ok(()))
    }
}

impl<I: Io> AsyncWrite for Greeted<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_greeting_is_read_once_more() {
        let (mut peer, io) = duplex(8);
        let said = tokio::spawn(async move {
            peer.write_all(PREFACE).await.unwrap();
            peer.write_all(b"and more").await.unwrap();
        });
        let mut greeted = Greeted::greet(io).await.unwrap();
        let mut all = Vec::new();
        greeted.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&PREFACE[..], b"and more"].concat());
        said.await.unwrap();
    }

    #[tokio::test]
    async fn another_greeting_is_refused_at_its_first_byte() {
        for said in ["GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nS?", "\x16\x03\x01"] {
            let (mut peer, io) = duplex(64);
            peer.write_all(said.as_bytes()).await.unwrap();
            // The peer says no more, and stays.
            assert_eq!(Greeted::greet(io).await.err().unwrap().kind(), io::ErrorKind::InvalidData, "{said:?}");
        }
        let (peer, io) = duplex(64);
        drop(peer);
        assert!(Greeted::greet(io).await.is_err());
    }
}
