//! The cells that one round measures, those beside each other that differ in nothing but the road.

use crate::results::{Cell, Results};
use crate::roads::Road;
use crate::run::Request;
use crate::scenario::{Case, Parameters, Scenario};

/// The same programs with the same parameters on all roads that they can take.
pub(crate) struct Group<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) case: &'a Case,
    pub(crate) parameters: Parameters,
    /// The cells, by road.
    pub(crate) cells: Vec<(usize, &'a Road)>,
}

/// Everything that is measured in one round; makes the cells that are not there yet.
pub(crate) fn groups<'a>(
    scenarios: &'a [Scenario],
    request: &'a Request,
    results: &mut Results,
) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for scenario in scenarios {
        for case in &scenario.cases {
            for parameters in case.parameters(request.plan.extent()) {
                let can_take =
                    |road: &&Road| scenario.server.on(road).is_some() && case.on(road).is_some();
                let roads = request.roads.iter().filter(can_take);
                let cells = roads
                    .map(|road| (cell_of(results, scenario, case, &parameters, road), road))
                    .collect();
                groups.push(Group {
                    scenario,
                    case,
                    parameters,
                    cells,
                });
            }
        }
    }
    groups
}

fn cell_of(
    results: &mut Results,
    scenario: &Scenario,
    case: &Case,
    parameters: &Parameters,
    road: &Road,
) -> usize {
    let name = format!("{}/{}", scenario.name, case.name);
    let is_it = |cell: &Cell| {
        cell.scenario == name && cell.road == road.name && cell.parameters == *parameters
    };
    results.cells.iter().position(is_it).unwrap_or_else(|| {
        results.cells.push(Cell {
            scenario: name,
            title: format!("{}: {}", scenario.title, case.title),
            road: road.name.clone(),
            parameters: parameters.clone(),
            unit: case.unit,
            figure: case.says(),
            trials: Vec::new(),
        });
        results.cells.len() - 1
    })
}
