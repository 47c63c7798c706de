//! The modules of a crate use each other in one direction. A module and the modules inside it may use each other. Any other cycle
//! is an error. Imports are followed to the module that defines the item, because a parent often reexports items of its children.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, ItemMod, ItemUse, UseTree,
    visit::{self, Visit},
};

/// The path of a module inside its crate, such as `["cluster", "claims"]`. The root is empty.
type Module = Vec<String>;

/// The content of one source file.
#[derive(Default)]
struct File {
    /// Names that the file imports or exports, with their full paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules from which the file imports everything.
    globs: Vec<Vec<String>>,
    /// Full paths of this crate that the code uses.
    uses: BTreeSet<Vec<String>>,
}

/// The modules of the crate with this root file, without tests, which may use whatever they test.
fn read(root: &Path) -> BTreeMap<Module, File> {
    let mut files = BTreeMap::new();
    read_file(root, root.parent().unwrap(), &Vec::new(), &mut files);
    files
}

fn read_file(path: &Path, children: &Path, module: &Module, files: &mut BTreeMap<Module, File>) {
    let parsed = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap();
    let mut visitor = Visitor { module: module.clone(), depth: 0, file: File::default(), children: Vec::new() };
    visitor.visit_file(&parsed);
    files.insert(module.clone(), visitor.file);
    for name in visitor.children {
        let flat = children.join(format!("{name}.rs"));
        let child: PathBuf = if flat.is_file() { flat } else { children.join(&name).join("mod.rs") };
        let path = [module.as_slice(), std::slice::from_ref(&name)].concat();
        read_file(&child, &children.join(&name), &path, files);
    }
}

struct Visitor {
    module: Module,
    /// The number of inline modules around the current position.
    depth: usize,
    file: File,
    children: Vec<String>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let text = list.tokens.to_string();
                text == "test" || text.starts_with("any (test") || text.starts_with("all (test")
            })
    })
}

impl Visitor {
    /// The path from the crate's root. `None` for paths to other crates and for names of the file itself.
    fn absolute(&self, segments: &[String]) -> Option<Vec<String>> {
        let mut base = self.module.clone();
        let mut above = self.depth;
        let mut rest = segments;
        match segments.first()?.as_str() {
            "crate" => return Some(segments[1..].to_vec()),
            "self" => rest = &segments[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    rest = &rest[1..];
                    if above > 0 {
                        above -= 1;
                    } else {
                        base.pop()?;
                    }
                }
            }
            _ => return None,
        }
        Some([base, rest.to_vec()].concat())
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                let path = if name == "self" {
                    prefix.clone()
                } else {
                    [prefix.as_slice(), std::slice::from_ref(&name)].concat()
                };
                let name = path.last().cloned().unwrap_or(name);
                self.import_one(name, &path);
            }
            UseTree::Rename(rename) => {
                let path = [prefix.as_slice(), &[rename.ident.to_string()]].concat();
                self.import_one(rename.rename.to_string(), &path);
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute(prefix) {
                    self.file.uses.insert(path.clone());
                    self.file.globs.push(path);
                }
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.import(item, prefix)),
        }
    }

    fn import_one(&mut self, name: String, path: &[String]) {
        let own_child = self.children.contains(&path[0]).then(|| [self.module.as_slice(), path].concat());
        if let Some(path) = self.absolute(path).or(own_child) {
            self.file.uses.insert(path.clone());
            self.file.imports.insert(name, path);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_file(&mut self, file: &'ast syn::File) {
        let declared = file.items.iter().filter_map(|item| match item {
            Item::Mod(module) if module.content.is_none() && !is_test(&module.attrs) => Some(module.ident.to_string()),
            _ => None,
        });
        self.children = declared.collect();
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(path) = self.absolute(&segments) {
            self.file.uses.insert(path);
        }
        // `claims::Claims`, where `claims` is a child or was imported.
        if let Some(base) = self.file.imports.get(&segments[0]).filter(|_| segments.len() > 1) {
            let path = [base.as_slice(), &segments[1..]].concat();
            self.file.uses.insert(path);
        } else if self.children.contains(&segments[0]) {
            self.file.uses.insert([self.module.as_slice(), &segments].concat());
        }
        visit::visit_path(self, path);
    }
}

/// The module that defines the item of a path.
fn defining(files: &BTreeMap<Module, File>, path: &[String], left: usize) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|length| files.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let file = &files[module];
    let (Some(name), Some(left)) = (rest.first(), left.checked_sub(1)) else { return Some(module.to_vec()) };
    if let Some(imported) = file.imports.get(name).filter(|imported| **imported != path) {
        return defining(files, &[imported.as_slice(), &rest[1..]].concat(), left);
    }
    Some(module.to_vec())
}

/// The siblings that each module uses. A module includes the modules inside it.
fn graph(files: &BTreeMap<Module, File>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut graph: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, file) in files {
        for other in file.uses.iter().filter_map(|path| defining(files, path, 8)) {
            let common = module.iter().zip(&other).take_while(|(one, other)| one == other).count();
            // Skip this pair if one of the two is inside the other.
            if common < module.len() && common < other.len() {
                graph.entry(module[..=common].to_vec()).or_default().insert(other[..=common].to_vec());
            }
        }
    }
    graph
}

/// The groups of modules that can all reach each other.
fn circles(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<&Module>> {
    let used = |module: &Module| graph.get(module).into_iter().flatten();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = graph
        .keys()
        .map(|from| {
            let mut reached = BTreeSet::new();
            let mut next: Vec<_> = used(from).collect();
            while let Some(module) = next.pop() {
                if reached.insert(module) {
                    next.extend(used(module));
                }
            }
            (from, reached)
        })
        .collect();
    let mut circles: Vec<BTreeSet<&Module>> = Vec::new();
    for (module, others) in &reached {
        let reaches = |other: &&Module| reached.get(other).is_some_and(|back| back.contains(module));
        let circle: BTreeSet<_> = others.iter().copied().filter(reaches).collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

#[test]
fn modules_form_no_circles() {
    let mut found = Vec::new();
    let is_root = |path: &PathBuf| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let roots: Vec<PathBuf> = super::rust_sources().into_iter().map(|(path, _)| path).filter(is_root).collect();
    assert!(roots.len() > 30, "{roots:?}");
    for path in roots {
        let files = read(&path);
        let graph = graph(&files);
        for circle in circles(&graph) {
            let shown = |module: &Module| if module.is_empty() { "crate".to_owned() } else { module.join("::") };
            let edges = circle.iter().map(|module| {
                let to: Vec<_> = graph[*module].iter().filter(|other| circle.contains(other)).map(shown).collect();
                format!("{} uses {}", shown(module), to.join(", "))
            });
            found.push(format!("{}: {:#?}", super::name(&path), edges.collect::<Vec<_>>()));
        }
    }
    assert!(found.is_empty(), "these modules use each other in a circle:\n{}", found.join("\n"));
}

#[test]
fn a_cycle_through_the_exports_of_a_parent_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "pub mod a; mod b; mod c;");
    write("a/mod.rs", "mod inner; mod other; pub use inner::Thing;");
    write("a/inner.rs", "use crate::b::Part; pub struct Thing(Part);");
    write("a/other.rs", "use super::Thing; #[cfg(test)] mod tests { use crate::c::Whole; }");
    write("b.rs", "pub struct Part; fn f(_: &crate::c::Whole) {}");
    write("c.rs", "use crate::a; pub struct Whole; fn g(_: a::Thing) {}");
    let files = read(&folder.path().join("lib.rs"));
    let graph = graph(&files);
    let found: Vec<Vec<String>> = circles(&graph)
        .into_iter()
        .map(|circle| circle.into_iter().map(|module| module.join("::")).collect())
        .collect();
    assert_eq!(found, [["a", "b", "c"]]);
}
