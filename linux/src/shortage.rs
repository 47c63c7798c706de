//! Errors that mean that the kernel is short of a resource or busy. The same request can succeed later.

use rustix::io::Errno;

/// `errno` values for a lack of memory, table space, buffers or files, and for a busy kernel.
const SHORTAGES: [Errno; 7] =
    [Errno::NOMEM, Errno::NFILE, Errno::MFILE, Errno::NOBUFS, Errno::NOSPC, Errno::AGAIN, Errno::INTR];

/// Whether `errno` means a shortage.
pub fn is_shortage(errno: i32) -> bool {
    SHORTAGES.iter().any(|shortage| shortage.raw_os_error() == errno)
}

/// Whether the message of a command line tool means a shortage. The tools print the C library's text for the `errno`.
pub fn message_is_shortage(message: &str) -> bool {
    const TEXTS: [&str; 8] = [
        "Cannot allocate memory",
        "Memory allocation problem",
        "Too many open files",
        "No buffer space available",
        "No space left on device",
        "Resource temporarily unavailable",
        "Interrupted system call",
        "Out of memory",
    ];
    TEXTS.iter().any(|text| message.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_differs_from_a_refusal() {
        for (errno, expected) in
            [(12, true), (23, true), (105, true), (2, false), (17, false), (22, false), (95, false)]
        {
            assert_eq!(is_shortage(errno), expected, "{errno}");
        }
        let texts = SHORTAGES.map(|errno| std::io::Error::from(errno).to_string());
        assert!(texts.iter().all(|text| message_is_shortage(text)), "{texts:?}");
        assert!(!message_is_shortage("RULE_APPEND failed (Invalid argument): rule in chain KUBE-SERVICES"));
    }
}
