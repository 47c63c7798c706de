//! Tests that docs/operations/configuration.md lists every field. UPDATE_EXPECT=1 rewrites the page.

use std::{env, fs, path::Path};

use localnet_config::{
    DROPPED, Document, Effect, FIELDS, Field, Version,
    flags::{FLAGS, Sets},
};
use serde_json::Value;

const HEAD: &str = "# Configuration

<!-- Made from config/src/table.rs by `make bless`. -->

The brain and the backends read a `KubeProxyConfiguration` (`v1alpha1` or `v1alpha2`) from the file that `--config` specifies. Without `--config`, they read
kube-proxy's flags. To check a file and to convert it to `v1alpha2`, use [`--write-config-to`](../migrating.md#1-check-the-configuration).

- In a `v1alpha1` file, an unknown field causes only a warning, as in kube-proxy. In a `v1alpha2` file, an unknown field is an error.
- With `--config`, only the flags with a star (*) have an effect. They override the file.
- If the file changes, most new values take effect immediately. These fields need a restart: ";

const TABLE: &str = "
## Fields

| v1alpha2 | v1alpha1, if different | flag | default | meaning |
|---|---|---|---|---|
";

const FLAGS_ONLY: &str = "
## Flags without a field

| flag | meaning |
|---|---|
";

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn flag(name: &str, overrides_file: bool) -> String {
    let dashes = if name.len() == 1 { "-" } else { "--" };
    format!("`{dashes}{name}`{}", if overrides_file { " *" } else { "" })
}

fn row(field: &Field, defaults: &[Document; 2]) -> String {
    let [old_defaults, new_defaults] = defaults;
    let text = |value: &Value| code(value.as_str().unwrap_or(&value.to_string()));
    let old = field.in_v1alpha1();
    let mut default = text(new_defaults.get(field.path));
    for Field { path, .. } in &old {
        let old = old_defaults.get(path);
        // A list in v1alpha2 may be a string in v1alpha1.
        if old != new_defaults.get(field.path) && !new_defaults.get(field.path).is_array() {
            let of = if *path == field.path { "v1alpha1".to_owned() } else { code(path) };
            default += &format!("; {of}: {}", text(old));
        }
    }
    let moved: Vec<_> = old.iter().filter(|old| old.path != field.path).map(|old| code(old.path)).collect();
    let v1alpha1 = if old.is_empty() { "none".to_owned() } else { moved.join("<br>") };
    let in_ipvs = field.ipvs_flag.map(|name| flag(name, false) + " in mode ipvs");
    let flags: Vec<_> =
        field.flag.map(|name| flag(name, field.flag_overrides_file)).into_iter().chain(in_ipvs).collect();
    let effect = match field.effect {
        Effect::No(why) => format!(" No effect: {why}."),
        _ => String::new(),
    };
    let meaning = field.meaning();
    format!("| `{}` | {v1alpha1} | {} | {default} | {meaning}{effect} |\n", field.path, flags.join("<br>"))
}

#[test]
fn the_page_lists_every_field_and_flag() {
    let defaults = [Version::V1alpha1, Version::V1alpha2].map(|version| Document::new(version).complete());
    let at_start = FIELDS.iter().filter(|field| field.effect == Effect::AtStart).map(|field| code(field.path));
    let mut page = format!("{HEAD}{}.\n{TABLE}", at_start.collect::<Vec<_>>().join(", "));
    page.extend(FIELDS.iter().map(|field| row(field, &defaults)));
    for (path, remedy) in DROPPED {
        page += &format!("| none | `{path}` |  |  | No effect: {}. |\n", remedy.trim_start_matches("remove it: "));
    }
    page += FLAGS_ONLY;
    for given in FLAGS.iter().filter(|flag| matches!(flag.sets, Sets::Program | Sets::Port(_))) {
        let none = given.no_effect.map(|why| format!(" No effect: {why}.")).unwrap_or_default();
        page += &format!("| {} | {}.{none} |\n", flag(given.name, given.beside_config), given.help);
    }
    let gone = FLAGS.iter().filter(|flag| flag.sets == Sets::Nothing).map(|given| flag(given.name, false));
    page += "\nThe programs accept these flags of earlier versions of kube-proxy, but ignore them: ";
    page += &format!("{}.\n", gone.collect::<Vec<_>>().join(", "));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations/configuration.md");
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        fs::read_to_string(path).unwrap_or_default(),
        page,
        "make bless rewrites docs/operations/configuration.md"
    );
}
