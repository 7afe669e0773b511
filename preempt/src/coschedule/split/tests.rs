//! The split against searches over all splits, and against a validator that knows no lemma.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::kit::Random;
use super::*;

type Edges = Vec<(usize, usize)>;

/// The same graph with other numbers, and its edges in another order.
fn relabelled(vertices: usize, edges: &Edges, random: &mut Random) -> Edges {
    let mut names: Vec<usize> = (0..vertices).collect();
    random.shuffle(&mut names);
    let mut edges: Edges = edges.iter().map(|&(i, j)| (names[i], names[j])).collect();
    for edge in &mut edges {
        if random.below(2) == 0 {
            *edge = (edge.1, edge.0);
        }
    }
    random.shuffle(&mut edges);
    edges
}

/// How often vertices are preempted when intervals run in the order of these edges: for each vertex, its runs of
/// neighbouring intervals less one.
fn preemptions(edges: &Edges, order: &[usize]) -> usize {
    let mut last_seen = BTreeMap::new();
    let mut preemptions = 0;
    for (at, &edge) in order.iter().enumerate() {
        for vertex in BTreeSet::from([edges[edge].0, edges[edge].1]) {
            if let Some(last) = last_seen.insert(vertex, at) {
                preemptions += usize::from(last + 1 != at);
            }
        }
    }
    preemptions
}

/// Splits, checks that the parts are a partition into schedules without preemptions but for those between parts and at
/// the cut of a cycle, and returns the number of preemptions of the whole schedule.
fn checked(vertices: usize, edges: &Edges) -> usize {
    let parts = caterpillars(vertices, edges).expect("a pseudo-forest");
    let order: Vec<usize> = parts.iter().flat_map(|part| part.edges.iter().copied()).collect();
    let all: BTreeSet<usize> = order.iter().copied().collect();
    assert_eq!(
        (all.len(), order.len()),
        (edges.len(), edges.len()),
        "each edge once: {edges:?} {parts:?}"
    );
    for part in &parts {
        assert!(!part.edges.is_empty(), "an empty part: {edges:?}");
    }
    preemptions(edges, &order)
}

/// Whether each component is a caterpillar: no cycle, and at most two neighbours that are no leaves at each vertex.
fn is_caterpillars(vertices: usize, edges: &Edges) -> bool {
    let mut degree = vec![0; vertices];
    let mut part: Vec<usize> = (0..vertices).collect();
    for &(i, j) in edges {
        degree[i] += 1;
        degree[j] += 1;
        let (mut a, mut b) = (i, j);
        while part[a] != a {
            a = part[a];
        }
        while part[b] != b {
            b = part[b];
        }
        if a == b {
            return false;
        }
        part[a] = b;
    }
    let mut inner = vec![0; vertices];
    for &(i, j) in edges {
        inner[i] += usize::from(degree[j] > 1);
        inner[j] += usize::from(degree[i] > 1);
    }
    inner.iter().all(|&count| count <= 2)
}

/// The fewest splits of vertices after which each component is a caterpillar (problem 2), over all partitions of the
/// edges at each vertex. Loops are edges to vertices of their own.
fn fewest_splits(vertices: usize, edges: &Edges) -> usize {
    let mut count = vertices;
    let simple = edges.iter().map(|&(i, j)| {
        let end = if i == j { count } else { j };
        count += usize::from(i == j);
        (i, end)
    });
    let simple: Edges = simple.collect();
    let at: Vec<Vec<(usize, bool)>> = (0..count)
        .map(|v| {
            let ends = simple.iter().enumerate();
            let ends = ends.flat_map(|(e, &(i, j))| [(e, false, i), (e, true, j)]);
            ends.filter(|&(.., end)| end == v).map(|(e, second, _)| (e, second)).collect()
        })
        .collect();
    let mut search = Search { at, edges: simple, best: usize::MAX };
    search.vertex(0, 0, &mut Vec::new(), count, 0);
    search.best
}

struct Search {
    /// For each vertex, its edges, and whether it is their second end.
    at: Vec<Vec<(usize, bool)>>,
    edges: Edges,
    best: usize,
}

impl Search {
    /// Gives the edges at vertex `v`, from the `next`th on, each to one of its `copies` so far or to a new one.
    fn vertex(
        &mut self,
        v: usize,
        next: usize,
        copies: &mut Vec<usize>,
        count: usize,
        splits: usize,
    ) {
        if splits >= self.best {
            return;
        }
        if v == self.at.len() {
            if is_caterpillars(count, &self.edges) {
                self.best = splits;
            }
            return;
        }
        let Some(&(edge, second)) = self.at[v].get(next) else {
            return self.vertex(v + 1, 0, &mut Vec::new(), count, splits);
        };
        let old = self.edges[edge];
        for choice in 0..=copies.len() {
            let is_new = choice == copies.len();
            let extra = usize::from(is_new && !copies.is_empty());
            if is_new {
                copies.push(if extra == 1 { count } else { v });
            }
            let end = if second { &mut self.edges[edge].1 } else { &mut self.edges[edge].0 };
            *end = copies[choice];
            self.vertex(v, next + 1, copies, count + extra, splits + extra);
            self.edges[edge] = old;
            if is_new {
                copies.pop();
            }
        }
    }
}

/// The fewest splits of a tree with any number of vertices, by dynamic programming over what each edge is at its ends;
/// it knows no lemma.
///
/// The edge above a vertex has, at its lower end, a copy of the vertex with other edges or without; and so at its upper
/// end. `cost[lower][upper]` is the fewest splits below, with 1 for a copy that has other edges.
fn fewest_splits_of_tree(vertices: usize, edges: &Edges) -> usize {
    let mut count = vertices;
    let mut near = vec![Vec::new(); vertices];
    for &(i, j) in edges {
        if i == j {
            near.push(vec![i]);
            near[i].push(count);
            count += 1;
        } else {
            near[i].push(j);
            near[j].push(i);
        }
    }
    let mut order = Vec::new();
    let mut parent = vec![usize::MAX; count];
    let mut seen = vec![false; count];
    for root in 0..count {
        if seen[root] {
            continue;
        }
        seen[root] = true;
        let mut stack = vec![root];
        while let Some(v) = stack.pop() {
            order.push(v);
            for &w in &near[v] {
                if !seen[w] {
                    (seen[w], parent[w]) = (true, v);
                    stack.push(w);
                }
            }
        }
    }
    const NEVER: usize = usize::MAX / 4;
    let mut cost = vec![[[NEVER; 2]; 2]; count];
    let mut total = 0;
    for &v in order.iter().rev() {
        let children: Vec<usize> = near[v].iter().copied().filter(|&w| parent[w] == v).collect();
        // `kept[heavy][light]` children share copies that have other edges, `light` capped at 2, and `alone` ones have
        // a copy each. Heavy children have a copy with other edges at their own end.
        let mut best = BTreeMap::from([((0, 0, 0), 0)]);
        for &child in &children {
            let mut next = BTreeMap::new();
            for ((heavy, light, alone), sum) in best {
                for (key, more) in [
                    ((heavy + 1, light, alone), cost[child][1][1]),
                    ((heavy, (light + 1).min(2), alone), cost[child][0][1]),
                    ((heavy, light, alone + 1), cost[child][0][0].min(cost[child][1][0])),
                ] {
                    let entry = next.entry(key).or_insert(NEVER);
                    *entry = NEVER.min(*entry).min(sum + more);
                }
            }
            best = next;
        }
        // A copy has two edges at least, and two heavy ones at most.
        let copies = |heavy: usize, light: usize| match (heavy, light) {
            (0, 0) => Some(0),
            (0, 1) => None,
            (1, 0) => None,
            // An odd heavy edge needs a light one beside it.
            (heavy, 0) if heavy % 2 == 1 => None,
            _ => Some(heavy.div_ceil(2).max(1)),
        };
        let mut own = [[NEVER; 2]; 2];
        let mut root = NEVER;
        for ((heavy, light, alone), sum) in best {
            let splits = |copies: usize| sum + (copies + alone).saturating_sub(1);
            if let Some(copies) = copies(heavy, light) {
                root = root.min(splits(copies));
                // The edge above is alone at its copy.
                for cost in &mut own[0] {
                    *cost = (*cost).min(splits(copies + 1));
                }
            }
            // The edge above is in a copy with others: a light one if the upper end has no other edge.
            for (upper, edge) in [(0, (0, 1)), (1, (1, 0))] {
                let together = copies(heavy + edge.0, (light + edge.1).min(2));
                if let Some(copies) = together.filter(|_| heavy + light > 0) {
                    own[1][upper] = own[1][upper].min(splits(copies));
                }
            }
        }
        cost[v] = own;
        if parent[v] == usize::MAX {
            total += root;
        }
    }
    total
}

/// The fewest splits of a graph with one cycle: some vertex of the cycle has its two edges of the cycle at different
/// copies, so it is split there, with its other edges at either copy, and the rest is a tree.
fn fewest_splits_of_cycle(vertices: usize, edges: &Edges) -> usize {
    let mut degree = vec![0; vertices];
    let mut on: Vec<bool> = vec![true; edges.len()];
    edges.iter().for_each(|&(i, j)| {
        degree[i] += 1;
        degree[j] += 1;
    });
    while let Some(e) =
        (0..edges.len()).find(|&e| on[e] && degree[edges[e].0].min(degree[edges[e].1]) == 1)
    {
        on[e] = false;
        degree[edges[e].0] -= 1;
        degree[edges[e].1] -= 1;
    }
    let mut best = usize::MAX;
    for v in (0..vertices).filter(|&v| degree[v] > 0) {
        let at: Vec<usize> =
            (0..edges.len()).filter(|&e| edges[e].0 == v || edges[e].1 == v).collect();
        let cycle: Vec<usize> = at.iter().copied().filter(|&e| on[e]).collect();
        let others: Vec<usize> = at.iter().copied().filter(|&e| !on[e]).collect();
        for subset in 0..1 << others.len() {
            let moved =
                (0..others.len()).filter(|bit| subset >> bit & 1 == 1).map(|bit| others[bit]);
            let mut cut = edges.clone();
            for e in moved.chain([cycle[0]]) {
                let end = if cut[e].0 == v { &mut cut[e].0 } else { &mut cut[e].1 };
                *end = vertices;
            }
            best = best.min(1 + fewest_splits_of_tree(vertices + 1, &cut));
        }
    }
    best
}

/// All trees with this many vertices, one of each shape.
fn trees(vertices: usize) -> Vec<Edges> {
    let mut trees = vec![Vec::new()];
    for v in 1..vertices {
        let mut shapes = HashSet::new();
        let larger = trees.iter().flat_map(|tree: &Edges| {
            (0..v).map(|at| tree.iter().copied().chain([(at, v)]).collect::<Edges>())
        });
        trees = larger.filter(|tree| shapes.insert(shape(v + 1, tree))).collect();
    }
    trees
}

/// The same text for trees of the same shape: the least of those for all roots.
fn shape(vertices: usize, tree: &Edges) -> String {
    fn below(v: usize, from: usize, near: &[Vec<usize>]) -> String {
        let mut parts: Vec<String> =
            near[v].iter().filter(|&&w| w != from).map(|&w| below(w, v, near)).collect();
        parts.sort_unstable();
        format!("({})", parts.concat())
    }
    let mut near = vec![Vec::new(); vertices];
    for &(i, j) in tree {
        near[i].push(j);
        near[j].push(i);
    }
    (0..vertices).map(|root| below(root, usize::MAX, &near)).min().expect("a vertex")
}

/// The tree with one more edge, in all ways: a loop, a parallel edge, or an edge that closes a cycle.
fn with_one_more(vertices: usize, tree: &Edges) -> Vec<Edges> {
    let pairs = (0..vertices).flat_map(|i| (i..vertices).map(move |j| (i, j)));
    pairs.map(|pair| tree.iter().copied().chain([pair]).collect()).collect()
}

#[test]
fn there_are_as_many_shapes_of_trees_as_are_known() {
    let counts: Vec<usize> = (1..=9).map(|vertices| trees(vertices).len()).collect();
    assert_eq!(counts, [1, 1, 1, 2, 3, 6, 11, 23, 47]);
}

#[test]
fn every_tree_up_to_nine_vertices_has_the_fewest_preemptions() {
    let mut random = Random(1);
    for vertices in 1..=9 {
        for tree in trees(vertices) {
            let fewest = fewest_splits(vertices, &tree);
            assert_eq!(
                fewest_splits_of_tree(vertices, &tree),
                fewest,
                "the two searches: {tree:?}"
            );
            for _ in 0..20 {
                let tree = relabelled(vertices, &tree, &mut random);
                assert_eq!(checked(vertices, &tree), fewest, "{tree:?}");
                let parts = caterpillars(vertices, &tree).expect("a tree").len();
                assert_eq!(parts, if vertices == 1 { 0 } else { fewest + 1 }, "{tree:?}");
            }
        }
    }
}

#[test]
fn every_pseudo_tree_up_to_nine_vertices_has_the_fewest_preemptions() {
    let mut random = Random(2);
    for vertices in 1..=9 {
        for tree in trees(vertices) {
            for graph in with_one_more(vertices, &tree) {
                let extra = graph[graph.len() - 1];
                let is_parallel = tree.contains(&extra) || tree.contains(&(extra.1, extra.0));
                let is_cycle = extra.0 != extra.1 && !is_parallel;
                let fewest = fewest_splits(vertices, if is_parallel { &tree } else { &graph });
                if is_cycle {
                    assert_eq!(fewest_splits_of_cycle(vertices, &graph), fewest, "{graph:?}");
                }
                for _ in 0..4 {
                    let graph = relabelled(vertices, &graph, &mut random);
                    assert_eq!(checked(vertices, &graph), fewest, "{graph:?}");
                    let parts = caterpillars(vertices, &graph).expect("a pseudo-tree").len();
                    assert_eq!(parts, fewest + usize::from(!is_cycle), "{graph:?}");
                }
            }
        }
    }
}

/// Every labelled tree, from its Prüfer code.
#[test]
fn every_labelled_tree_with_seven_vertices_has_the_fewest_preemptions() {
    const N: usize = 7;
    let mut known = std::collections::HashMap::new();
    for code in 0..N.pow(N as u32 - 2) {
        let code: Vec<usize> = (0..N as u32 - 2).map(|digit| code / N.pow(digit) % N).collect();
        let mut degree = [1; N];
        code.iter().for_each(|&v| degree[v] += 1);
        let mut tree = Vec::new();
        for &v in &code {
            let leaf = (0..N).find(|&leaf| degree[leaf] == 1).expect("a leaf");
            tree.push((leaf, v));
            degree[leaf] -= 1;
            degree[v] -= 1;
        }
        let last: Vec<usize> = (0..N).filter(|&v| degree[v] == 1).collect();
        tree.push((last[0], last[1]));
        let fewest = *known.entry(shape(N, &tree)).or_insert_with(|| fewest_splits(N, &tree));
        assert_eq!(checked(N, &tree), fewest, "{tree:?}");
    }
    assert_eq!(known.len(), 11);
}

/// Lemma 1, and that no order of the intervals has fewer preemptions than the split.
#[test]
fn no_order_of_intervals_has_fewer_preemptions() {
    fn orders(edges: &Edges, order: &mut Vec<usize>, best: &mut usize) {
        if order.len() == edges.len() {
            *best = (*best).min(preemptions(edges, order));
        }
        for edge in 0..edges.len() {
            if !order.contains(&edge) {
                order.push(edge);
                // More intervals never undo a preemption.
                if preemptions(edges, order) < *best {
                    orders(edges, order, best);
                }
                order.pop();
            }
        }
    }
    for vertices in 2..=7 {
        for tree in trees(vertices) {
            let graphs = with_one_more(vertices, &tree);
            let graphs = graphs.into_iter().filter(|graph| graph.len() <= 7).chain([tree]);
            for graph in graphs {
                let mut best = usize::MAX;
                orders(&graph, &mut Vec::new(), &mut best);
                assert_eq!(checked(vertices, &graph), best, "{graph:?}");
            }
        }
    }
}

fn random_tree(vertices: usize, reach: usize, random: &mut Random) -> Edges {
    (1..vertices).map(|v| (v - 1 - random.below(reach.min(v)), v)).collect()
}

#[test]
fn random_pseudo_trees_have_the_fewest_preemptions() {
    let mut random = Random(3);
    for round in 0..3000 {
        let vertices = 10 + random.below(30);
        // From paths to bushes.
        let reach = 1 + random.below(if round % 2 == 0 { 4 } else { vertices });
        let tree = random_tree(vertices, reach, &mut random);
        let tree = relabelled(vertices, &tree, &mut random);
        assert_eq!(checked(vertices, &tree), fewest_splits_of_tree(vertices, &tree), "{tree:?}");

        // A cycle with bushes of a few vertices, so that all shapes of figure 3 are beside one another.
        let length = 3 + random.below(5);
        let mut graph: Edges = (0..length).map(|v| (v, (v + 1) % length)).collect();
        let vertices = length + random.below(3 * length);
        for v in length..vertices {
            let above = random.below(v);
            graph.push((above, v));
        }
        let graph = relabelled(vertices, &graph, &mut random);
        assert_eq!(
            checked(vertices, &graph),
            fewest_splits_of_cycle(vertices, &graph),
            "{graph:?}"
        );
    }
}

#[test]
fn large_trees_are_split_into_caterpillars() {
    let mut random = Random(4);
    const N: usize = 100_000;
    // A short path; a path that would overflow the stack of a recursion; bushes; a star.
    for reach in [1, 2, 3, 10, N] {
        let tree = random_tree(N, reach, &mut random);
        let tree = relabelled(N, &tree, &mut random);
        assert_eq!(checked(N, &tree), fewest_splits_of_tree(N, &tree), "reach {reach}");
        let mut cycle = tree;
        cycle.push((0, N - 1));
        checked(N, &cycle);
    }
    let star: Edges = (1..N).map(|v| (0, v)).collect();
    assert_eq!(checked(N, &star), 0);
    let ring: Edges = (0..N).map(|v| (v, (v + 1) % N)).collect();
    assert_eq!(checked(N, &ring), 1);
}

/// Algorithm 1 returns what is left of the tree also where that is nothing: as written it counts two caterpillars.
#[test]
fn a_root_with_two_legs_leaves_nothing() {
    let path = vec![(0, 1), (1, 2), (2, 3), (3, 4)];
    assert_eq!(caterpillars(5, &path).expect("a path").len(), 1);
    assert_eq!(checked(5, &path), 0);
}

/// Lemma 5 where the two vertices with one leg each are neighbours on the other side: as written, both take that edge.
#[test]
fn an_edge_that_is_next_to_both_legs_is_taken_once() {
    // Cycle 0, 1, 2 with legs at 0 and 2, and a leaf at 1.
    let graph = vec![(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (2, 5), (5, 6), (1, 7)];
    assert_eq!(caterpillars(8, &graph).expect("a pseudo-tree").len(), 1);
    assert_eq!(checked(8, &graph), 1);
}

/// Lemma 7 on a cycle whose vertices all have legs: as many caterpillars as half of the legs, rounded up.
#[test]
fn legs_all_around_a_cycle_are_paired() {
    for (length, legs) in [(3, 1), (3, 2), (4, 1), (5, 2), (7, 1)] {
        let mut graph: Edges = (0..length).map(|v| (v, (v + 1) % length)).collect();
        let mut vertices = length;
        for v in 0..length {
            for _ in 0..legs {
                graph.extend([(v, vertices), (vertices, vertices + 1)]);
                vertices += 2;
            }
        }
        let expected = (length * legs).div_ceil(2);
        assert_eq!(fewest_splits_of_cycle(vertices, &graph), expected);
        assert_eq!(checked(vertices, &graph), expected);
    }
}

#[test]
fn forests_are_split_component_by_component() {
    let mut graph = vec![(0, 0), (2, 3), (3, 2), (4, 5), (5, 6), (6, 4)];
    assert_eq!(checked(8, &graph), 1);
    assert_eq!(caterpillars(8, &graph).expect("a pseudo-forest").len(), 3);
    // A loop is a leaf.
    graph.push((4, 4));
    assert_eq!(checked(8, &graph), 1);
}

#[test]
fn what_is_no_pseudo_forest_is_refused() {
    for (vertices, edges, says) in [
        (2, vec![(0, 2)], "(0, 2)"),
        (4, vec![(0, 1), (1, 2), (2, 0), (2, 3), (3, 0)], "two cycles"),
        (6, vec![(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)], "two cycles"),
    ] {
        let error = caterpillars(vertices, &edges).expect_err("no pseudo-forest");
        assert!(error.to_string().contains(says), "{error}");
    }
}
