//! CaterpillarSplit (section IV-B of the paper): the edges of a pseudo-forest in the fewest caterpillars.
//!
//! Vertices are tasks, edges are pairs that run together for some time. A caterpillar is a path with leaves. The
//! intervals of its edges run along the path, each vertex's leaves on the way, and no task of it is preempted
//! (lemma 1). A task in k places of the result is preempted k - 1 times.
//!
//! Each vertex is looked at after its children, with what is left of them (see [`Below`]). The paper's loop over
//! vertices of height 2 becomes one pass without recursion, in time linear in the edges.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::error::{CoscheduleError, Error};

/// Edges whose intervals can run one after the other without a preemption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caterpillar {
    /// Indices of edges, in an order in which each vertex's edges are neighbours; or those of each of its two copies,
    /// where a cycle was cut at that vertex.
    pub edges: Vec<usize>,
}

/// Splits a pseudo-forest into the fewest caterpillars (algorithms 1 and 2).
///
/// Edges are pairs of vertices from 0 to `vertices - 1`. A loop `(i, i)` is the time that task i runs alone. Parallel
/// edges are ways of sharing for one pair; they become neighbours, and count as one edge. So neither is a cycle here.
///
/// ```
/// use preempt::coschedule::caterpillars;
///
/// // Three legs of two edges at vertex 0: no path goes through all three (figure 1c).
/// let spider = [(0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (5, 6)];
/// assert_eq!(caterpillars(7, &spider)?.len(), 2);
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// # Errors
///
/// [`CoscheduleError::NotAPseudoForest`] if a vertex is out of range, or a component has two cycles of three or more
/// vertices.
pub fn caterpillars(vertices: usize, edges: &[(usize, usize)]) -> Result<Vec<Caterpillar>, Error> {
    let refuse = |reason| Error::from(CoscheduleError::NotAPseudoForest { reason });
    if let Some((i, j)) = edges.iter().find(|&&(i, j)| i.max(j) >= vertices) {
        let reason = format!("edge ({i}, {j}) has a vertex that is not below {vertices}");
        return Err(refuse(reason));
    }
    let graph = Graph::new(vertices, edges);
    let mut split = Split { graph: &graph, out: Vec::new() };
    let mut below = vec![Below::default(); graph.vertices()];
    let mut degree: Vec<usize> = (0..graph.vertices()).map(|v| graph.at(v).len()).collect();
    let mut peeled = vec![false; graph.vertices()];

    // Vertices with one edge left, each below the other end of that edge. A tree's last vertex is its root.
    let mut ends: Vec<usize> = (0..graph.vertices()).rev().filter(|&v| degree[v] <= 1).collect();
    while let Some(v) = ends.pop() {
        let state = std::mem::take(&mut below[v]);
        peeled[v] = true;
        let Some(&(parent, edge)) = graph.at(v).iter().find(|&&(other, _)| !peeled[other]) else {
            split.root(state);
            continue;
        };
        split.hang(state, edge, &mut below[parent]);
        degree[parent] -= 1;
        if degree[parent] == 1 {
            ends.push(parent);
        }
    }

    // What is left is cycles, if each vertex has two edges of it.
    if let Some(v) = (0..graph.vertices()).find(|&v| !peeled[v] && degree[v] > 2) {
        let reason = format!(
            "vertex {v} joins two cycles; give a graph whose components have at most one cycle of three or \
             more vertices each, such as that of a vertex of the linear program (theorem 1)"
        );
        return Err(refuse(reason));
    }
    for start in 0..graph.vertices() {
        if peeled[start] {
            continue;
        }
        let mut cycle = Vec::new();
        let mut v = start;
        loop {
            peeled[v] = true;
            let state = std::mem::take(&mut below[v]);
            let next = graph.at(v).iter().find(|&&(other, _)| !peeled[other]);
            let Some(&(next, edge)) = next else {
                // The last vertex, whose neighbours on the cycle are the one before it and the first one.
                let back = graph.at(v).iter().find(|&&(other, _)| other == start);
                cycle.extend(back.map(|&(_, edge)| Station { state, edge }));
                break;
            };
            cycle.push(Station { state, edge });
            v = next;
        }
        split.cycle(cycle);
    }
    Ok(split.out)
}

/// A pseudo-forest without loops and parallel edges.
struct Graph {
    /// For each edge, the indices of the user's edges.
    edges: Vec<Vec<usize>>,
    /// For each vertex, its neighbours and the edges to them, from `first[v]` to `first[v + 1]`.
    neighbours: Vec<(usize, usize)>,
    first: Vec<usize>,
}

impl Graph {
    fn new(vertices: usize, given: &[(usize, usize)]) -> Graph {
        let mut number = FxHashMap::<(usize, usize), usize>::default();
        let mut edges: Vec<Vec<usize>> = Vec::new();
        let mut ends = Vec::new();
        let mut count = vertices;
        for (at, &(i, j)) in given.iter().enumerate() {
            match number.entry((i.min(j), i.max(j))) {
                Entry::Occupied(known) => edges[*known.get()].push(at),
                Entry::Vacant(new) => {
                    new.insert(edges.len());
                    edges.push(vec![at]);
                    // A loop is an edge to a vertex of its own (section IV-B, 2).
                    ends.push(if i == j { (i, count) } else { (i, j) });
                    count += usize::from(i == j);
                }
            }
        }
        let mut first = vec![0; count + 1];
        for &(i, j) in &ends {
            first[i + 1] += 1;
            first[j + 1] += 1;
        }
        for v in 0..count {
            first[v + 1] += first[v];
        }
        let mut next = first.clone();
        let mut neighbours = vec![(0, 0); 2 * ends.len()];
        for (edge, &(i, j)) in ends.iter().enumerate() {
            for (from, to) in [(i, j), (j, i)] {
                neighbours[next[from]] = (to, edge);
                next[from] += 1;
            }
        }
        Graph { edges, neighbours, first }
    }

    fn vertices(&self) -> usize {
        self.first.len() - 1
    }

    fn at(&self, vertex: usize) -> &[(usize, usize)] {
        &self.neighbours[self.first[vertex]..self.first[vertex + 1]]
    }
}

/// What is left of the subtree below a vertex, after the caterpillars that are certain are taken from it.
#[derive(Clone, Default)]
struct Below {
    /// Edges to leaves.
    leaves: Vec<usize>,
    /// Legs: each is what is left of a child of height 1, and then the edge to that child. A leg's edges are in the
    /// order of a schedule that ends at the vertex.
    legs: Vec<Vec<usize>>,
}

/// A vertex of a cycle, and the edge to the next one.
struct Station {
    state: Below,
    edge: usize,
}

struct Split<'a> {
    graph: &'a Graph,
    out: Vec<Caterpillar>,
}

impl Split<'_> {
    /// Takes a caterpillar out of the graph.
    fn take(&mut self, edges: Vec<usize>) {
        let edges = edges.iter().flat_map(|&edge| &self.graph.edges[edge]).copied().collect();
        self.out.push(Caterpillar { edges });
    }

    /// Takes the caterpillar of two legs and what is between them.
    fn join(&mut self, from: Vec<usize>, between: impl IntoIterator<Item = usize>, to: Vec<usize>) {
        let mut edges = from;
        edges.extend(between);
        edges.extend(to.into_iter().rev());
        self.take(edges);
    }

    /// Lemma 2: of three or more legs, two are a caterpillar.
    fn pair_legs(&mut self, state: &mut Below) {
        while state.legs.len() > 2 {
            let (Some(u), Some(v)) = (state.legs.pop(), state.legs.pop()) else { return };
            self.join(u, [], v);
        }
    }

    /// Looks at a vertex whose parent is at the other end of the edge, and adds what is left of it to the parent.
    fn hang(&mut self, mut state: Below, edge: usize, parent: &mut Below) {
        self.pair_legs(&mut state);
        let Below { leaves, mut legs } = state;
        match (legs.pop(), legs.pop()) {
            (None, _) if leaves.is_empty() => parent.leaves.push(edge),
            // Lemma 4: the only leg and the vertex are one, of height 1; as is a vertex with leaves.
            (leg, None) => {
                let mut leg = leg.unwrap_or_default();
                leg.extend(leaves);
                leg.push(edge);
                parent.legs.push(leg);
            }
            // Lemma 3: two legs are a caterpillar, with the edge to the parent.
            (u, Some(v)) => {
                let u = u.unwrap_or_default();
                self.join(u, leaves.into_iter().chain([edge]), v);
            }
        }
    }

    /// Takes what is left of a tree. The paper's algorithm 1 returns it also when no edge is left, one caterpillar too
    /// many.
    fn root(&mut self, mut state: Below) {
        self.pair_legs(&mut state);
        let Below { leaves, mut legs } = state;
        let (u, v) = (legs.pop().unwrap_or_default(), legs.pop().unwrap_or_default());
        if !(u.is_empty() && leaves.is_empty()) {
            self.join(u, leaves, v);
        }
    }

    /// Takes a cycle, with what is left of the trees at its vertices (algorithm 2).
    fn cycle(&mut self, mut cycle: Vec<Station>) {
        for station in &mut cycle {
            self.pair_legs(&mut station.state);
        }
        let with_legs = |cycle: &[Station]| -> Vec<usize> {
            (0..cycle.len()).filter(|&at| !cycle[at].state.legs.is_empty()).collect()
        };
        let stations = with_legs(&cycle);
        if let [] | [_] = *stations {
            // The cycle is cut at the vertex with legs, or at any.
            cycle.rotate_left(stations.first().copied().unwrap_or(0));
            let mut legs = std::mem::take(&mut cycle[0].state.legs);
            let (u, v) = (legs.pop().unwrap_or_default(), legs.pop().unwrap_or_default());
            let around = cycle
                .into_iter()
                .flat_map(|Station { state, edge }| state.leaves.into_iter().chain([edge]));
            return self.join(u, around, v);
        }
        // Between a vertex with legs and the next one, one with leaves or two of any shape force a caterpillar.
        let gap = |from: usize| {
            let length = (1..).find(|by| !cycle[(from + by) % cycle.len()].state.legs.is_empty());
            length.unwrap_or(cycle.len()) - 1
        };
        let forced = stations.iter().copied().find(|&from| {
            gap(from) >= 2
                || gap(from) == 1 && !cycle[(from + 1) % cycle.len()].state.leaves.is_empty()
        });
        if let Some(from) = forced {
            let inner = gap(from);
            cycle.rotate_left(from);
            return self.forced(cycle, inner);
        }
        cycle.rotate_left(stations[0]);
        self.merged(cycle);
    }

    /// Lemmas 5 and 6: the first vertex has a leg, the vertices after it have none, as many as `inner`, and the next
    /// one, w, has a leg again. The path between these legs is a caterpillar. Without it the rest is a tree.
    fn forced(&mut self, mut cycle: Vec<Station>, inner: usize) {
        let rest = cycle.split_off(inner + 1);
        let mut rest = rest.into_iter();
        let mut path = cycle.into_iter();
        let (Some(first), Some(w)) = (path.next(), rest.next()) else { return };
        let (mut first_state, mut w_state) = (first.state, w.state);
        let from = first_state.legs.pop().unwrap_or_default();
        let to = w_state.legs.pop().unwrap_or_default();

        // The other way round: from w by its edge to the next vertex, and so on to the first vertex.
        let mut edges = VecDeque::from([w.edge]);
        let mut others = VecDeque::new();
        for Station { state, edge } in rest {
            others.push_back(state);
            edges.push_back(edge);
        }
        // A vertex without another leg takes the next edge of the cycle with it, as a leaf. The edge may be the same.
        let w_edge = if w_state.legs.is_empty() { edges.pop_front() } else { None };
        let first_edge = if first_state.legs.is_empty() { edges.pop_back() } else { None };

        let mut between: Vec<usize> = first_edge.into_iter().collect();
        between.append(&mut first_state.leaves);
        between.push(first.edge);
        for Station { state, edge } in path {
            between.extend(state.leaves);
            between.push(edge);
        }
        between.append(&mut w_state.leaves);
        between.extend(w_edge);
        self.join(from, between, to);

        // Algorithm 1 on the path that is left, from w to the first vertex.
        if !w_state.legs.is_empty() {
            others.push_front(w_state);
        }
        if !first_state.legs.is_empty() {
            others.push_back(first_state);
        }
        let Some(mut state) = others.pop_front() else { return };
        for (mut next, edge) in others.into_iter().zip(edges) {
            self.hang(state, edge, &mut next);
            state = next;
        }
        self.root(state);
    }

    /// Lemma 7: vertices with legs are neighbours on the cycle, or have one vertex of shape A between them. They merge
    /// to one, whose legs pair up as in lemma 2. The first vertex has a leg.
    fn merged(&mut self, cycle: Vec<Station>) {
        // Vertices with legs, each with the edges to the next one: one, or two with a vertex of shape A between.
        let mut stops: Vec<(Below, Vec<usize>)> = Vec::new();
        for Station { state, edge } in cycle {
            match stops.last_mut() {
                Some((_, gap)) if state.legs.is_empty() => gap.push(edge),
                _ => stops.push((state, vec![edge])),
            }
        }
        let count = stops.len();
        // Legs in their order around the cycle; the first with the second, the third with the fourth, and so on.
        let mut legs = Vec::new();
        for (at, (state, _)) in stops.iter_mut().enumerate() {
            legs.extend(state.legs.drain(..).map(|leg| (at, leg)));
        }
        let crossed: Vec<bool> = {
            let mut crossed = vec![false; count];
            for pair in legs.chunks_exact(2) {
                crossed[pair[0].0] |= pair[0].0 != pair[1].0;
            }
            crossed
        };
        // A gap that no pair crosses is leaves of the vertices at its ends; one of shape A is split there.
        let mut beside: Vec<Vec<usize>> = Vec::new();
        for (state, _) in &mut stops {
            beside.push(std::mem::take(&mut state.leaves));
        }
        for (at, (_, gap)) in stops.iter().enumerate() {
            if !crossed[at] {
                beside[at].extend(gap.first());
                beside[(at + 1) % count].extend(gap.get(1));
            }
        }
        let mut legs = legs.into_iter();
        while let Some((at, leg)) = legs.next() {
            let mut between = std::mem::take(&mut beside[at]);
            let other = legs.next().map(|(to, other)| {
                if to != at {
                    between.extend(&stops[at].1);
                    between.append(&mut beside[to]);
                }
                other
            });
            self.join(leg, between, other.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests;
