//! Long lists are written by several threads, a piece each, and go out in their order.

use std::{
    num::NonZero,
    sync::mpsc::{self, Receiver},
    thread,
};

/// So many pieces a thread is ahead of what has gone out.
const AHEAD: usize = 4;

/// Makes something of each piece of a list, which has `size` items, and hands it to `take` in the list's order. As many threads make
/// them as there are processors; `take` runs in this one.
///
/// # Errors
/// Those of `take`.
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
            // Nobody receives any more after an error.
            scope.spawn(move || own.try_for_each(|piece| made.send(make(piece))));
            receiver
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        // The first that has no more is past the end of the list.
        workers.iter().cycle().map_while(|worker| worker.recv().ok()).try_for_each(&mut take)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn pieces_come_in_order_and_all_of_them() {
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
