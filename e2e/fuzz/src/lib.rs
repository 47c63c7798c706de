//! Corpora, and what makes more inputs of them: for tests of whatever reads what others wrote.
//!
//! ```no_run
//! localnet_fuzz::target("numbers", &[b"1 2"], |bytes| format!("{:?}", std::str::from_utf8(bytes).map(str::len)));
//! ```
//! A target is an ordinary test. It is put every file of `corpus/NAME` (a case each, with the name of the file), the seeds of
//! the test, and inputs made of all of them: some hundred in `make test`, and for `FUZZ_SECONDS` in `make fuzz`. It must neither
//! panic nor take long. An input that breaks it is kept in its corpus: from then on it is a case.
//!
//! What a target says of an input steers what comes next: an input about which something new is said is worth changing further.
//! That needs no instrumented build, so it runs with the compiler that builds the rest
//! (docs/decisions, "Fuzzing with the stable compiler").

pub mod mutate;

use std::{
    collections::HashSet,
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

/// So many inputs are made in `make test`.
const FEW: u64 = 400;
/// Inputs worth changing further that are kept at a time.
const POOL: usize = 2048;
/// No input may take longer, on a machine that is busy with other things.
const SLOW: Duration = Duration::from_secs(10);

/// Puts inputs to `judge`, which says in words what it makes of them.
///
/// # Panics
/// `judge` panics, or takes too long: the input is then in the corpus.
pub fn target(name: &str, seeds: &[&[u8]], judge: impl Fn(&[u8]) -> String) {
    let folder = corpus(name);
    let mut pool: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    pool.extend(files(&folder).into_iter().map(|path| read(&path)));
    assert!(!pool.is_empty(), "there is nothing to begin with: no seed, and nothing in {}", folder.display());
    let mut known = HashSet::new();
    for input in &pool {
        known.insert(put(&folder, input, &judge));
    }
    let seconds = env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
    // The same inputs each time, unless there is time for more.
    let seed = if seconds.is_some() { rand::random() } else { 7 };
    let mut random = StdRng::seed_from_u64(seed);
    let (began, cases) = (Instant::now(), pool.len());
    let mut made = 0_u64;
    while seconds.map_or(made < FEW, |seconds| began.elapsed() < seconds) {
        let input = mutate::mutated(&pool, &mut random);
        made += 1;
        if known.insert(put(&folder, &input, &judge)) {
            if pool.len() < POOL {
                pool.push(input);
            } else {
                let place = random.random_range(0..pool.len());
                pool[place] = input;
            }
        }
    }
    if seconds.is_some() {
        println!("{name}: {cases} cases, {made} inputs in {:?}, {} answers, seed {seed}", began.elapsed(), known.len());
    }
}

/// The folder of a target's cases.
pub fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is said of an input, in short.
fn put(folder: &Path, input: &[u8], judge: &impl Fn(&[u8]) -> String) -> u64 {
    let began = Instant::now();
    let said = catch_unwind(AssertUnwindSafe(|| judge(input)));
    let said = said.unwrap_or_else(|panic| {
        eprintln!("{}", keep(folder, input));
        resume_unwind(panic)
    });
    let took = began.elapsed();
    assert!(took < SLOW, "{took:?} for one input; {}", keep(folder, input));
    essence(&said)
}

/// Writes down an input that breaks the target, and says where.
fn keep(folder: &Path, input: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("broken-{:016x}", hasher.finish()));
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&path, input));
    match kept {
        Ok(()) => format!("the input is kept in {}", path.display()),
        Err(error) => format!("the input cannot be kept in {}: {error}; it is {input:?}", path.display()),
    }
}

/// What is said, without the numbers and texts of the input that are in it.
fn essence(said: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut quoted = false;
    for character in said.chars().take(2000) {
        quoted ^= character == '"';
        if !quoted && !character.is_ascii_digit() {
            character.hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_said_steers_what_comes_next() {
        // Reached only byte by byte: at random it would take 2^32 inputs.
        let deepest = Cell::new(0);
        let judge = |bytes: &[u8]| {
            let depth = bytes.iter().zip(b"kube").take_while(|(one, other)| one == other).count();
            deepest.set(deepest.get().max(depth));
            "abcde"[..=depth].to_owned()
        };
        let mut pool = vec![b"xxxx".to_vec()];
        let mut random = StdRng::seed_from_u64(1);
        let mut known = HashSet::new();
        for _ in 0..200_000 {
            if deepest.get() == 4 {
                break;
            }
            let input = mutate::mutated(&pool, &mut random);
            if known.insert(essence(&judge(&input))) {
                pool.push(input);
            }
        }
        assert_eq!(deepest.get(), 4);
    }

    #[test]
    fn numbers_and_texts_are_not_news() {
        assert_eq!(essence("line 7: \"abc\" is no port"), essence("line 12: \"x\" is no port"));
        assert_ne!(essence("is no port"), essence("is no address"));
    }

    #[test]
    fn an_input_that_breaks_a_target_is_kept() {
        let folder = env::temp_dir().join(format!("localnet-fuzz-{}", std::process::id()));
        let broken = catch_unwind(AssertUnwindSafe(|| put(&folder, b"odd", &|_: &[u8]| panic!("on purpose"))));
        assert!(broken.is_err());
        let kept = files(&folder);
        assert_eq!(kept.iter().map(|path| read(path)).collect::<Vec<_>>(), [b"odd"]);
        fs::remove_dir_all(folder).expect("it was made here");
    }
}
