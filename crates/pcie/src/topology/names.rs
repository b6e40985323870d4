//! Every node by name, with groups expanded: `gpu` with a count of eight is `gpu0` to `gpu7`.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::scenario::{Kind, Scenario, StreamSpec};

/// One expanded node: which spec it is from, its place in the group, its name and its parent.
pub(super) struct Member {
    pub(super) spec: usize,
    pub(super) name: String,
    pub(super) parent: Option<usize>,
}

impl Member {
    pub(super) fn kind(&self, scenario: &Scenario) -> Kind {
        scenario.node[self.spec].kind
    }
}

/// Every node by name, groups expanded.
pub(super) struct Names {
    pub(super) members: Vec<Member>,
    /// The first member of a name and how many there are.
    pub(super) groups: BTreeMap<String, (usize, usize)>,
    /// Specs whose id was taken.
    pub(super) twins: Vec<(usize, String)>,
}

impl Names {
    pub(super) fn of(scenario: &Scenario) -> Self {
        let mut names = Self {
            members: Vec::new(),
            groups: BTreeMap::new(),
            twins: Vec::new(),
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
        names.adopt(scenario);
        names
    }

    /// Takes a name for some members, or notes that another has it.
    fn claim(&mut self, spec: usize, name: String, members: (usize, usize)) {
        match self.groups.entry(name) {
            Entry::Occupied(taken) => self.twins.push((spec, taken.key().clone())),
            Entry::Vacant(free) => {
                free.insert(members);
            }
        }
    }

    /// Finds each member's parent: a group of children is dealt out over a group of parents.
    fn adopt(&mut self, scenario: &Scenario) {
        for spec in &scenario.node {
            let Some(&(first, count)) = self.groups.get(&spec.id) else {
                continue;
            };
            let parents = spec
                .parent
                .as_deref()
                .and_then(|p| self.groups.get(p).copied());
            let Some((above, parents)) = parents else {
                continue;
            };
            for k in 0..count {
                self.members[first + k].parent = Some(above + k * parents / count);
            }
        }
    }

    /// The ends of every stream a spec stands for.
    pub(super) fn pairs(&self, spec: &StreamSpec) -> Vec<(usize, usize)> {
        let group = |name: &str| self.groups.get(name).copied();
        let (Some((from, m)), Some((to, n))) = (group(&spec.from), group(&spec.to)) else {
            return Vec::new();
        };
        (0..m.max(n)).map(|i| (from + i % m, to + i % n)).collect()
    }
}
