//! A program's graphs in Graphviz's language.

use crate::{Graph, Program, Role, ValueId};
use std::collections::HashMap;
use std::fmt::Write;

/// One `digraph` with a cluster for each graph and a box for each scope.
pub fn dot(program: &Program) -> String {
    let mut out = String::from(
        "digraph program {\n  rankdir=TB; node [shape=box, fontname=\"monospace\", fontsize=10];\n",
    );
    for (i, state) in program.states.iter().enumerate() {
        let _ = writeln!(out, "  s{i} [shape=cylinder, label=\"{}\"];", escape(&state.name));
    }
    for (g, graph) in program.graphs.iter().enumerate() {
        let title = match graph.role {
            Role::Target {} => "target",
            Role::Draft { .. } => "draft",
            Role::Observe {} => "observe",
        };
        let _ = writeln!(out, "  subgraph cluster_{g} {{ label=\"{title}\";");
        write_graph(&mut out, g, graph);
        out.push_str("  }\n");
    }
    out.push_str("}\n");
    out
}

fn write_graph(out: &mut String, g: usize, graph: &Graph) {
    let mut made_by: HashMap<ValueId, String> = HashMap::new();
    for input in &graph.inputs {
        let id = format!("g{g}i{}", input.value.0);
        let _ = writeln!(out, "    {id} [shape=ellipse, label=\"{}\"];", escape(&input.shape.to_string()));
        made_by.insert(input.value, id);
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        let id = format!("g{g}n{n}");
        let shape = node.outs.first().map_or(String::new(), |o| format!("\\n{}", o.shape));
        let _ = writeln!(out, "    {id} [label=\"{}\\n{}{shape}\"];", escape(&node.label()), node.op.name());
        for operand in &node.ins {
            if let Some(from) = made_by.get(operand) {
                let _ = writeln!(out, "    {from} -> {id};");
            }
        }
        for state in node.op.states() {
            let _ = writeln!(out, "    s{} -> {id} [style=dashed, dir=both];", state.0);
        }
        for result in &node.outs {
            made_by.insert(result.value, id.clone());
        }
    }
    for output in &graph.outputs {
        if let Some(from) = made_by.get(&output.value) {
            let id = format!("g{g}o{}", output.value.0);
            let _ = writeln!(
                out,
                "    {id} [shape=ellipse, label=\"{:?} {}\"]; {from} -> {id};",
                output.kind,
                escape(&output.name)
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
