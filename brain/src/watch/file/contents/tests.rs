//! Only changes are read again, and the result is the same as that of reading everything.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use super::Contents;
use crate::watch::file::{load, tests::watching::World};

/// A Service that is recognized by its ClusterIP.
fn service(name: &str, last: u8) -> String {
    let spec = format!("  clusterIP: 10.96.0.{last}\n  ports:\n  - port: 80\n");
    format!("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

/// A time long after all writes of the test.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

/// The number of files read and of documents parsed. `None` if there was a problem.
fn read(contents: &mut Contents, world: &mut World, folder: &Path, now: SystemTime) -> Option<(usize, usize)> {
    let news = contents.read(folder, now).ok()?;
    let read = (news.files(), news.parsed);
    world.fold(contents.take(news));
    Some(read)
}

/// The objects that a new reader finds.
fn anew(folder: &Path) -> World {
    let mut world = World::default();
    world.fold(load(folder).unwrap().events);
    world
}

#[test]
fn only_changed_documents_are_parsed_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut contents, mut world) = (Contents::default(), World::default());
    let write = |file: &str, services: &[(&str, u8)]| {
        let text: String = services.iter().map(|(name, last)| service(name, *last)).collect();
        fs::write(folder.path().join(file), text).unwrap();
    };
    for file in 0..10 {
        let names: Vec<String> = (0..10).map(|number| format!("s{file}-{number}")).collect();
        write(&format!("{file}.yaml"), &names.iter().map(|name| (&**name, file)).collect::<Vec<_>>());
    }
    let mut check = |expected: (usize, usize), what: &str| {
        assert_eq!(read(&mut contents, &mut world, folder.path(), later()), Some(expected), "{what}");
        assert_eq!(world, anew(folder.path()), "{what}");
    };
    check((10, 100), "everything, at first");
    check((0, 0), "nothing has changed");
    let file = folder.path().join("3.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("10.96.0.3", "10.96.0.99", 1)).unwrap();
    check((1, 1), "one object");
    fs::write(&file, format!("# on top\n{text}{}", service("more", 1))).unwrap();
    check((1, 2), "the first has its former address, one was added, and all have other lines");
    fs::write(&file, &text[text[1..].find("---").unwrap() + 1..]).unwrap();
    check((1, 0), "two objects were deleted");
    fs::rename(&file, folder.path().join("x.yaml")).unwrap();
    check((1, 9), "another file");
    fs::remove_file(folder.path().join("4.yaml")).unwrap();
    check((0, 0), "a file was deleted");
    fs::rename(folder.path().join("5.yaml"), folder.path().join("new")).unwrap();
    fs::copy(folder.path().join("new"), folder.path().join("5.yaml")).unwrap();
    check((1, 0), "another file with the same content");
}

/// The clock that stamps files ticks every few milliseconds. So a file that was just written can get new content with the same
/// stamp.
#[test]
fn a_recently_written_file_is_read_again_despite_an_equal_stamp() {
    let folder = tempfile::tempdir().unwrap();
    let (mut contents, mut world) = (Contents::default(), World::default());
    fs::write(folder.path().join("a.yaml"), service("web", 1)).unwrap();
    let now = SystemTime::now();
    assert_eq!(read(&mut contents, &mut world, folder.path(), now), Some((1, 1)));
    assert_eq!(read(&mut contents, &mut world, folder.path(), now), Some((1, 0)));
    assert_eq!(read(&mut contents, &mut world, folder.path(), later()), Some((1, 0)), "read once more, then no longer");
    assert_eq!(read(&mut contents, &mut world, folder.path(), now), Some((0, 0)));
}

/// Regression: a valid file that changed together with an invalid one must be read again.
#[test]
fn news_that_is_not_taken_is_returned_again() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    let (mut contents, mut world) = (Contents::default(), World::default());
    fs::write(&good, service("web", 1)).unwrap();
    read(&mut contents, &mut world, folder.path(), later()).unwrap();
    fs::write(&good, service("web", 2)).unwrap();
    fs::write(&bad, "kind: [").unwrap();
    assert_eq!(read(&mut contents, &mut world, folder.path(), later()), None);
    fs::write(&bad, service("web", 3)).unwrap();
    let problems = contents.read(folder.path(), later()).unwrap_err();
    let message = format!(
        "{}:2: Service default/web: is defined twice, first in {}:2; remove one of the two",
        bad.display(),
        good.display()
    );
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
    fs::remove_file(&bad).unwrap();
    assert_eq!(read(&mut contents, &mut world, folder.path(), later()), Some((1, 1)));
    assert_eq!(world, anew(folder.path()));
}

#[test]
fn a_duplicate_is_reported_in_the_order_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    let (mut contents, mut world) = (Contents::default(), World::default());
    fs::write(&b, service("other", 1) + &service("web", 1)).unwrap();
    read(&mut contents, &mut world, folder.path(), later()).unwrap();
    fs::write(&a, service("web", 2)).unwrap();
    let problem = contents.read(folder.path(), later()).unwrap_err()[0].to_string();
    let message = format!(
        "{}:11: Service default/web: is defined twice, first in {}:2; remove one of the two",
        b.display(),
        a.display()
    );
    assert_eq!(problem, message);
}

mod any_history {
    use proptest::prelude::*;

    use super::*;

    /// A line of a file: an object with an address, an ignored object, or an invalid one.
    #[derive(Clone, Debug)]
    enum Line {
        Service(u8, u8),
        Ignored,
        Nonsense,
    }

    fn line() -> impl Strategy<Value = Line> {
        prop_oneof![
            20 => (0..12u8, 0..3u8).prop_map(|(name, last)| Line::Service(name, last)),
            3 => Just(Line::Ignored),
            1 => Just(Line::Nonsense),
        ]
    }

    fn text(lines: &[Line]) -> String {
        let text = |line: &Line| match line {
            Line::Service(name, last) => service(&format!("s{name}"), *last),
            Line::Ignored => "---\napiVersion: v1\nkind: Pod\n".to_owned(),
            Line::Nonsense => "---\nkind: [\n".to_owned(),
        };
        lines.iter().map(text).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is written, deleted and read, valid or invalid: the known objects are those that a new reader would find, or
        /// those of the last successful read.
        #[test]
        fn ends_as_if_read_anew(history in prop::collection::vec((0..3u8, prop::option::of(prop::collection::vec(line(), 0..4)), any::<bool>()), 1..12)) {
            let folder = tempfile::tempdir().unwrap();
            let (mut contents, mut world) = (Contents::default(), World::default());
            for (file, lines, settled) in history {
                let path = folder.path().join(format!("{file}.yaml"));
                match lines {
                    // A file without documents would count as one that is being written.
                    Some(lines) => fs::write(&path, format!("apiVersion: v1\nkind: List\n{}", text(&lines))).unwrap(),
                    None => _ = fs::remove_file(&path),
                }
                let now = if settled { later() } else { SystemTime::now() };
                let good = read(&mut contents, &mut world, folder.path(), now).is_some();
                let anew = load(folder.path());
                prop_assert_eq!(good, anew.is_ok());
                if let Ok(anew) = anew {
                    let mut expected = World::default();
                    expected.fold(anew.events);
                    prop_assert_eq!(&world, &expected);
                    prop_assert_eq!(contents.ignored(), anew.ignored.iter().collect::<Vec<_>>());
                }
            }
        }
    }
}
