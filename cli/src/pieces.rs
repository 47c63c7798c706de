//! Processes a long list in pieces with several threads, and passes the results on in the list's order.

use std::{
    num::NonZero,
    sync::mpsc::{self, Receiver},
    thread,
};

/// How many finished pieces of a thread may wait to be taken.
const AHEAD: usize = 4;

/// Applies `make` to each piece of `size` items and passes the results to `take` in the list's order. One thread per processor
/// runs `make`; the calling thread runs `take`.
///
/// # Errors
/// Returns the first error of `take`.
pub fn in_order<T: Sync, P: Send, E>(
    items: &[T],
    size: usize,
    make: impl Fn(&[T]) -> P + Sync,
    mut take: impl FnMut(P) -> Result<(), E>,
) -> Result<(), E> {
    let pieces = items.chunks(size);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    if threads == 1 || pieces.len() <= 1 {
        return pieces.map(make).try_for_each(take);
    }
    let make = &make;
    thread::scope(|scope| {
        let worker = |first| -> Receiver<P> {
            let (made, receiver) = mpsc::sync_channel(AHEAD);
            let mut own = items.chunks(size).skip(first).step_by(threads);
            // After an error there is no receiver any more; sending then fails and ends the thread.
            scope.spawn(move || own.try_for_each(|piece| made.send(make(piece))));
            receiver
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        // The first worker without a further piece marks the end of the list.
        workers.iter().cycle().map_while(|worker| worker.recv().ok()).try_for_each(&mut take)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn all_pieces_arrive_in_order() {
        for length in [0, 1, 3, 4, 200] {
            let items: Vec<usize> = (0..length).collect();
            let mut seen = Vec::new();
            let taken: Result<(), Infallible> = in_order(&items, 3, <[usize]>::to_vec, |piece| {
                seen.extend(piece);
                Ok(())
            });
            assert_eq!((taken, seen), (Ok(()), items));
        }
    }

    #[test]
    fn an_error_ends_it() {
        let items = [0_u8; 300];
        let mut seen = 0;
        let taken = in_order(&items, 3, <[u8]>::len, |piece| {
            seen += piece;
            if seen < 9 { Ok(()) } else { Err("full") }
        });
        assert_eq!((taken, seen), (Err("full"), 9));
    }
}
