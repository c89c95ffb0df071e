//! Two builds of Millrace that carried the same roads in one run.

use super::{Comparison, Options, compare};
use crate::builds::Build;
use crate::results::{Cell, Results, Road};

/// Holds the second build against the first, each road with itself. `None`: the results are of no such run.
#[must_use]
pub fn builds(results: &Results, options: &Options) -> Option<Comparison> {
    let mut builds: Vec<&Build> = Vec::new();
    for build in results.roads.iter().filter_map(|road| road.build.as_ref()) {
        if !builds.contains(&build) {
            builds.push(build);
        }
    }
    let &[first, second] = builds.as_slice() else {
        return None;
    };
    let options = Options {
        names: [first, second].map(|build| build.name.clone()),
        interleaved: true,
        ..options.clone()
    };
    let mut found = compare(
        &carried(results, first),
        &carried(results, second),
        &options,
    );
    found.about = [first, second].map(about).to_vec();
    if first.is_same_as(second) {
        let (one, other) = (&first.name, &second.name);
        found.warnings.push(format!(
            "{one} and {other} are the same build, byte by byte"
        ));
    }
    Some(found)
}

fn about(build: &Build) -> String {
    let Build {
        name,
        program,
        version,
        ..
    } = build;
    format!("{name} is {version}, {}.", program.display())
}

/// What a build has carried, on roads with the names that they have for everybody.
fn carried(results: &Results, build: &Build) -> Results {
    let is_its = |road: &&Road| road.build.as_ref() == Some(build);
    let roads: Vec<&Road> = results.roads.iter().filter(is_its).collect();
    let name = |road: &str| build.road_of(road).to_owned();
    let of_roads = |cell: &&Cell| roads.iter().any(|road| road.name == cell.road);
    let cells = results.cells.iter().filter(of_roads).map(|cell| Cell {
        road: name(&cell.road),
        ..cell.clone()
    });
    Results {
        cells: cells.collect(),
        roads: roads
            .iter()
            .map(|&road| Road {
                name: name(&road.name),
                ..road.clone()
            })
            .collect(),
        ..results.clone()
    }
}
