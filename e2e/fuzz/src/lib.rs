//! Fuzz targets that run as ordinary tests, for code that parses foreign input.
//!
//! ```no_run
//! localnet_fuzz::target("numbers", &[b"1 2"], |bytes| format!("{:?}", std::str::from_utf8(bytes).map(str::len)));
//! ```
//! A target runs on every file of `corpus/NAME`, on the seeds of the test, and on mutations of all of these: some hundred in
//! `make test`, and as many as fit into `FUZZ_SECONDS` in `make fuzz`. It must neither panic nor take long. An input that breaks
//! it is kept in its corpus, and so becomes a regression test.
//!
//! A target returns a description of each input. An input with a new description is mutated further, so descriptions serve as
//! coverage. That needs no instrumented build, so fuzzing uses the compiler of the rest
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

/// How many mutations `make test` runs.
const DEFAULT_INPUTS: u64 = 400;
/// The maximum number of inputs that are mutated further.
const POOL: usize = 2048;
/// The time limit for one input, with a margin for a busy machine.
const SLOW: Duration = Duration::from_secs(10);

/// Runs `describe` on inputs. `describe` returns a description of its input.
///
/// # Panics
/// Panics if `describe` panics or takes too long. The input is then in the corpus.
pub fn target(name: &str, seeds: &[&[u8]], describe: impl Fn(&[u8]) -> String) {
    let folder = corpus(name);
    let mut pool: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    pool.extend(files(&folder).into_iter().map(|path| read(&path)));
    assert!(!pool.is_empty(), "no inputs to start with: no seeds, and nothing in {}", folder.display());
    let mut known = HashSet::new();
    for input in &pool {
        known.insert(run(&folder, input, &describe));
    }
    let seconds = env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
    // A fixed seed, so that `make test` is reproducible.
    let seed = if seconds.is_some() { rand::random() } else { 7 };
    let mut random = StdRng::seed_from_u64(seed);
    let (began, cases) = (Instant::now(), pool.len());
    let mut made = 0_u64;
    while seconds.map_or(made < DEFAULT_INPUTS, |seconds| began.elapsed() < seconds) {
        let input = mutate::mutated(&pool, &mut random);
        made += 1;
        if known.insert(run(&folder, &input, &describe)) {
            if pool.len() < POOL {
                pool.push(input);
            } else {
                let place = random.random_range(0..pool.len());
                pool[place] = input;
            }
        }
    }
    if seconds.is_some() {
        println!(
            "{name}: {cases} cases, {made} inputs in {:?}, {} descriptions, seed {seed}",
            began.elapsed(),
            known.len()
        );
    }
}

/// The folder of a target's corpus.
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

/// Runs `describe` on an input, and returns the fingerprint of the description.
fn run(folder: &Path, input: &[u8], describe: &impl Fn(&[u8]) -> String) -> u64 {
    let began = Instant::now();
    let described = catch_unwind(AssertUnwindSafe(|| describe(input)));
    let description = described.unwrap_or_else(|panic| {
        eprintln!("{}", keep(folder, input));
        resume_unwind(panic)
    });
    let took = began.elapsed();
    assert!(took < SLOW, "{took:?} for one input; {}", keep(folder, input));
    fingerprint(&description)
}

/// Adds an input that breaks the target to the corpus, and returns a message with the path of the new file.
fn keep(folder: &Path, input: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("broken-{:016x}", hasher.finish()));
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&path, input));
    match kept {
        Ok(()) => format!("the input is kept in {}", path.display()),
        Err(error) => format!("failed to keep the input in {}: {error}; it is {input:?}", path.display()),
    }
}

/// The hash of a description, without numbers and quoted texts, which come from the input.
fn fingerprint(description: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut quoted = false;
    for character in description.chars().take(2000) {
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
    fn inputs_with_new_descriptions_are_mutated_further() {
        // Only reachable byte by byte: at random it would take 2^32 inputs.
        let deepest = Cell::new(0);
        let describe = |bytes: &[u8]| {
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
            if known.insert(fingerprint(&describe(&input))) {
                pool.push(input);
            }
        }
        assert_eq!(deepest.get(), 4);
    }

    #[test]
    fn descriptions_that_differ_in_numbers_or_texts_are_equal() {
        assert_eq!(fingerprint("line 7: \"abc\" is no port"), fingerprint("line 12: \"x\" is no port"));
        assert_ne!(fingerprint("is no port"), fingerprint("is no address"));
    }

    #[test]
    fn an_input_that_breaks_a_target_is_kept() {
        let folder = env::temp_dir().join(format!("localnet-fuzz-{}", std::process::id()));
        let broken = catch_unwind(AssertUnwindSafe(|| run(&folder, b"odd", &|_: &[u8]| panic!("on purpose"))));
        assert!(broken.is_err());
        let kept = files(&folder);
        assert_eq!(kept.iter().map(|path| read(path)).collect::<Vec<_>>(), [b"odd"]);
        fs::remove_dir_all(folder).expect("it was made here");
    }
}
