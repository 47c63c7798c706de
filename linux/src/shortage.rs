//! Refusals that say nothing of what was asked for: the kernel is short of something, and takes the same later.

use rustix::io::Errno;

/// Short of memory, of room in a table, of buffers or of files, or busy.
const SHORTAGES: [Errno; 7] =
    [Errno::NOMEM, Errno::NFILE, Errno::MFILE, Errno::NOBUFS, Errno::NOSPC, Errno::AGAIN, Errno::INTR];

/// Whether the error number is one of those.
pub fn is_shortage(errno: i32) -> bool {
    SHORTAGES.iter().any(|shortage| shortage.raw_os_error() == errno)
}

/// The same of the words of a tool, which says what the C library calls the error number.
pub fn says_shortage(message: &str) -> bool {
    const WORDS: [&str; 8] = [
        "Cannot allocate memory",
        "Memory allocation problem",
        "Too many open files",
        "No buffer space available",
        "No space left on device",
        "Resource temporarily unavailable",
        "Interrupted system call",
        "Out of memory",
    ];
    WORDS.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_from_a_refusal() {
        for (errno, expected) in
            [(12, true), (23, true), (105, true), (2, false), (17, false), (22, false), (95, false)]
        {
            assert_eq!(is_shortage(errno), expected, "{errno}");
        }
        let texts = SHORTAGES.map(|errno| std::io::Error::from(errno).to_string());
        assert!(texts.iter().all(|text| says_shortage(text)), "{texts:?}");
        assert!(!says_shortage("RULE_APPEND failed (Invalid argument): rule in chain KUBE-SERVICES"));
    }
}
