//! `nft`, and comparisons of its listings.

use crate::namespace::run;

/// Runs `nft` with these arguments and that input, and returns its output.
#[track_caller]
pub(crate) fn nft(arguments: &[&str], input: &str) -> String {
    run("nft", arguments, input)
}

/// Sorts the elements in a listing, one per line, because the kernel lists those of hash sets in no stable order.
pub(crate) fn sorted(listing: &str) -> String {
    let mut out = String::new();
    let mut rest = listing;
    while let Some(start) = rest.find("elements = { ") {
        let (before, from) = rest.split_at(start);
        let end = from.find(" }\n").expect("elements end");
        let mut elements: Vec<&str> = from["elements = { ".len()..end].split(',').map(str::trim).collect();
        elements.sort_unstable();
        out += before;
        out += "elements = {\n";
        for element in elements {
            out += &format!("\t\t\t{element}\n");
        }
        out += "\t\t}\n";
        rest = &from[end + " }\n".len()..];
    }
    out + rest
}

/// Panics with the lines that differ.
#[track_caller]
pub(crate) fn assert_same(left: &str, right: &str, what: &str) {
    let (left, right) = (sorted(left), sorted(right));
    let only = |these: &str, others: &str| -> String {
        these.lines().filter(|line| !others.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
    };
    assert!(left == right, "{what}\nleft only:\n{}\nright only:\n{}", only(&left, &right), only(&right, &left));
}
