//! `cargo xtask sbom`: what the agent's image is made of, as a CycloneDX 1.5 bill of materials on standard output.
//!
//! It lists the crates that are linked into the programs of the image, as `Cargo.lock` pins them; tools that only build, and crates
//! that only tests use, are not among them. It has no date and no number of its own, so that it is the same whenever it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Packages whose programs or libraries are in the image.
const SHIPPED: [&str; 4] = [
    "millrace-cli",
    "millrace-cluster",
    "millrace-device-plugin",
    "millrace-preload",
];

/// Prints it.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    if let Some(argument) = arguments.next()? {
        return Err(argument.unexpected().into());
    }
    let words = ["metadata", "--format-version=1", "--locked"];
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = cargo(&words, &[format!("--filter-platform={target}")])?;
    let metadata = serde_json::from_str(&metadata).context("cargo metadata")?;
    let mut chosen = vec![format!("--target={target}")];
    chosen.extend(SHIPPED.iter().map(|name| format!("--package={name}")));
    let words = ["tree", "--locked", "--edges=normal", "--prefix=none"];
    let built = cargo(&words, &chosen)?;
    let lock = std::fs::read_to_string("Cargo.lock").context("Cargo.lock")?;
    let text = serde_json::to_string_pretty(&bill(&metadata, &lock, &named(&built))?)?;
    println!("{text}");
    Ok(())
}

/// What cargo prints.
fn cargo(words: &[&str], more: &[String]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).args(words).args(more).output();
    let output = output.with_context(|| format!("cargo {}", words[0]))?;
    ensure!(
        output.status.success(),
        "cargo {}: {}",
        words[0],
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Packages of `cargo tree`, by name and version: `cargo metadata` has what features that are off could add, too.
fn named(tree: &str) -> BTreeSet<(&str, &str)> {
    let pair = |line| {
        let mut words = str::split_whitespace(line);
        Some((words.next()?, words.next()?.strip_prefix('v')?))
    };
    tree.lines().filter_map(pair).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// The bill of what `cargo metadata` and `Cargo.lock` say of the packages that are built.
fn bill(metadata: &Value, lock: &str, built: &BTreeSet<(&str, &str)>) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> = list(metadata, "packages")
        .map(|package| (text(package, "id"), package))
        .collect();
    let uses: BTreeMap<&str, Vec<&str>> = list(&metadata["resolve"], "nodes")
        .map(|node| (text(node, "id"), linked(node)))
        .collect();
    let shipped = packages
        .iter()
        .filter(|(_, package)| SHIPPED.contains(&text(package, "name")));
    let mut todo: Vec<&str> = shipped.map(|(id, _)| *id).collect();
    ensure!(
        todo.len() == SHIPPED.len(),
        "packages of the image are missing: {SHIPPED:?}"
    );
    let mut reached = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if reached.insert(id) {
            todo.extend(uses.get(id).into_iter().flatten());
        }
    }
    let sums = checksums(lock);
    let mut components: Vec<Value> = reached
        .iter()
        .filter_map(|id| packages.get(id))
        .filter(|package| built.contains(&(text(package, "name"), text(package, "version"))))
        .map(|package| component(package, &sums))
        .collect();
    components.sort_by_key(|component| text(component, "purl").to_owned());
    let own = packages
        .values()
        .find(|package| text(package, "name") == SHIPPED[0]);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "container",
            "name": "millrace",
            "version": own.map(|package| text(package, "version")),
        }},
        "components": components,
    }))
}

/// What a package's code is linked with: no dependencies of its build script or its tests.
fn linked(node: &Value) -> Vec<&str> {
    list(node, "deps")
        .filter(|dependency| list(dependency, "dep_kinds").any(|kind| kind["kind"].is_null()))
        .map(|dependency| text(dependency, "pkg"))
        .collect()
}

fn component(package: &Value, sums: &BTreeMap<(&str, &str), &str>) -> Value {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let mut component = json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{"expression": text(package, "license")}],
    });
    if let Some(sum) = sums.get(&(name, version)) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

/// The sums of `Cargo.lock`, by name and version. Our own packages have none.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let mut sums = BTreeMap::new();
    for entry in lock.split("\n[[package]]") {
        let get = |name: &str| {
            let line = entry
                .lines()
                .find(|line| line.split(' ').next() == Some(name))?;
            line.split('"').nth(1)
        };
        if let (Some(name), Some(version), Some(sum)) =
            (get("name"), get("version"), get("checksum"))
        {
            sums.insert((name, version), sum);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"5a\"\n\n\
                        [[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";

    #[test]
    fn it_lists_what_is_linked_and_nothing_else() {
        let package = |name: &str, version: &str| json!({"id": name, "name": name, "version": version, "license": "MIT"});
        let uses = |id: &str, others: &[(&str, Value)]| {
            let deps: Vec<Value> = others
                .iter()
                .map(|(pkg, kind)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]}))
                .collect();
            json!({"id": id, "deps": deps})
        };
        let mut packages: Vec<Value> = SHIPPED.iter().map(|name| package(name, "0.1.0")).collect();
        packages.extend([
            package("a", "1.0.0"),
            package("b", "2.0.0"),
            package("c", "3.0.0"),
            package("d", "4.0.0"),
        ]);
        let nodes = [
            uses(SHIPPED[0], &[("a", Value::Null), ("b", json!("dev"))]),
            uses("a", &[("c", json!("build")), ("d", Value::Null)]),
        ];
        let metadata = json!({"packages": packages, "resolve": {"nodes": nodes}});
        // A feature that is off would add d.
        let tree: String = SHIPPED
            .iter()
            .map(|name| format!("{name} v0.1.0 (/here)\n"))
            .collect();
        let tree = format!("{tree}a v1.0.0\nb v2.0.0\nc v3.0.0 (*)\n");
        let bill = bill(&metadata, LOCK, &named(&tree)).unwrap();
        let names: Vec<&str> = list(&bill, "components")
            .map(|each| text(each, "name"))
            .collect();
        assert_eq!(
            names,
            [
                "a",
                "millrace-cli",
                "millrace-cluster",
                "millrace-device-plugin",
                "millrace-preload"
            ]
        );
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "5a");
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/a@1.0.0");
    }
}
