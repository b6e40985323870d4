//! Every node by name, with groups expanded: `gpu` with a count of eight is `gpu0` to `gpu7`.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::scenario::{NodeKind, PcieScenario, StreamSpec};

/// One expanded node: its spec, its name and its parent.
pub(super) struct Member {
    pub(super) spec: usize,
    pub(super) name: String,
    pub(super) parent: Option<usize>,
}

impl Member {
    pub(super) fn kind(&self, scenario: &PcieScenario) -> NodeKind {
        scenario.node[self.spec].kind
    }
}

/// Every node by name, groups expanded.
pub(super) struct Names {
    pub(super) members: Vec<Member>,
    /// The first member of each name, and the number of members.
    pub(super) groups: BTreeMap<String, (usize, usize)>,
    /// Specs whose id was taken.
    pub(super) duplicates: Vec<(usize, String)>,
}

impl Names {
    pub(super) fn of(scenario: &PcieScenario) -> Self {
        let mut names = Self {
            members: Vec::new(),
            groups: BTreeMap::new(),
            duplicates: Vec::new(),
        };
        for (i, spec) in scenario.node.iter().enumerate() {
            let first = names.members.len();
            let count = usize::try_from(spec.count.unwrap_or(1)).expect("checked before");
            names.claim(i, spec.id.clone(), (first, count));
            for k in 0..count {
                let mut name = spec.id.clone();
                if spec.count.is_some() {
                    name = format!("{name}{k}");
                    names.claim(i, name.clone(), (first + k, 1));
                }
                names.members.push(Member {
                    spec: i,
                    name,
                    parent: None,
                });
            }
        }
        names.assign_parents(scenario);
        names
    }

    /// Registers a name for some members, or records that it is taken.
    fn claim(&mut self, spec: usize, name: String, members: (usize, usize)) {
        match self.groups.entry(name) {
            Entry::Occupied(taken) => self.duplicates.push((spec, taken.key().clone())),
            Entry::Vacant(free) => {
                free.insert(members);
            }
        }
    }

    /// Finds each member's parent: a group of children is spread over a group of parents.
    fn assign_parents(&mut self, scenario: &PcieScenario) {
        for spec in &scenario.node {
            let Some(&(first, count)) = self.groups.get(&spec.id) else {
                continue;
            };
            let parents = spec.parent.as_deref().and_then(|p| self.groups.get(p).copied());
            let Some((above, parents)) = parents else {
                continue;
            };
            for k in 0..count {
                self.members[first + k].parent = Some(above + k * parents / count);
            }
        }
    }

    /// The ends of every stream of a spec.
    pub(super) fn pairs(&self, spec: &StreamSpec) -> Vec<(usize, usize)> {
        let group = |name: &str| self.groups.get(name).copied();
        let (Some((from, m)), Some((to, n))) = (group(&spec.from), group(&spec.to)) else {
            return Vec::new();
        };
        (0..m.max(n)).map(|i| (from + i % m, to + i % n)).collect()
    }
}
