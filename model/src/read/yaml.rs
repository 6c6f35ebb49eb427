//! YAML to settings: the parser's events, without recursion, aliases bounded by what they expand to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::YamlError;
use crate::fields::{Setting, Value};

/// Deepest nesting, aliases included.
const MAX_DEPTH: usize = 32;
/// Most nodes, and most settings after aliases are expanded.
const MAX_NODES: usize = 1 << 15;
/// Most bytes of names and values after aliases are expanded: each of the settings that a run has is some tens.
const MAX_BYTES: usize = 1 << 22;

/// A value in the file. Aliases share theirs, names included.
enum Node {
    Scalar(Option<Rc<str>>),
    List(Vec<Rc<Self>>, usize),
    Map(Vec<Entry>, usize),
}

/// A name and its value.
type Entry = (Rc<str>, Rc<Node>);

/// Reads the settings of one YAML document, in its order.
pub(super) fn settings(text: &str) -> Result<Vec<Setting>, YamlError> {
    let root = Builder::default().read(text)?;
    let mut settings = Flattener::default();
    match &*root {
        Node::Map(..) => settings.node(&mut Vec::new(), &root)?,
        _ => return Err(YamlError::NotAMapping),
    }
    Ok(settings.list)
}

/// A list or mapping that is being read.
enum Open {
    List(Vec<Rc<Node>>),
    Map { entries: Vec<Entry>, names: BTreeSet<Rc<str>>, key: Option<Rc<str>> },
}

#[derive(Default)]
struct Builder {
    /// With the anchor and the line of each.
    open: Vec<(Open, usize, usize)>,
    anchors: BTreeMap<usize, Rc<Node>>,
    nodes: usize,
    root: Option<Rc<Node>>,
}

impl Builder {
    fn read(mut self, text: &str) -> Result<Rc<Node>, YamlError> {
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| YamlError::Syntax {
                line: error.marker().line(),
                text: error.info().to_owned(),
            })?;
            self.nodes += 1;
            if self.nodes > 2 * MAX_NODES {
                return Err(YamlError::TooMuch { limit: MAX_NODES });
            }
            if matches!(event, Event::DocumentStart(_)) {
                documents += 1;
                if documents > 1 {
                    return Err(YamlError::Documents { line: line(&span) });
                }
            }
            self.event(event, &span)?;
        }
        self.root.ok_or(YamlError::NotAMapping)
    }

    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), YamlError> {
        match event {
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                let node = node.ok_or(YamlError::Alias { line: line(span) })?;
                self.complete(node, 0, span)
            }
            Event::Scalar(text, style, anchor, _) => {
                let null = style == ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL" | "None");
                let node = Node::Scalar((!null).then(|| Rc::from(&*text)));
                self.complete(Rc::new(node), anchor, span)
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List(Vec::new()), anchor, span),
            Event::MappingStart(anchor, _) => {
                let map = Open::Map { entries: Vec::new(), names: BTreeSet::new(), key: None };
                self.begin(map, anchor, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: Open, anchor: usize, span: &Span) -> Result<(), YamlError> {
        if self.open.len() == MAX_DEPTH {
            return Err(YamlError::TooDeep { line: line(span), limit: MAX_DEPTH });
        }
        self.open.push((open, anchor, line(span)));
        Ok(())
    }

    fn end(&mut self, span: &Span) -> Result<(), YamlError> {
        let Some((open, anchor, start)) = self.open.pop() else { return Ok(()) };
        let node = match open {
            Open::List(items) => {
                let depth = items.iter().map(|item| item.depth()).max().unwrap_or(0) + 1;
                Node::List(items, depth)
            }
            Open::Map { entries, .. } => {
                let depth = entries.iter().map(|(_, value)| value.depth()).max().unwrap_or(0) + 1;
                Node::Map(entries, depth)
            }
        };
        if node.depth() > MAX_DEPTH {
            return Err(YamlError::TooDeep { line: start, limit: MAX_DEPTH });
        }
        self.complete(Rc::new(node), anchor, span)
    }

    /// Puts a finished node where it belongs: a key, a value, an item or the root.
    fn complete(&mut self, node: Rc<Node>, anchor: usize, span: &Span) -> Result<(), YamlError> {
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((Open::List(items), ..)) => items.push(node),
            Some((Open::Map { entries, names, key }, ..)) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => match &*node {
                    Node::Scalar(text) => {
                        let name = text.clone().unwrap_or_else(|| Rc::from(""));
                        if &*name != "<<" && !names.insert(Rc::clone(&name)) {
                            return Err(YamlError::Twice { line: line(span), key: name.as_ref().to_owned() });
                        }
                        *key = Some(name);
                    }
                    _ => return Err(YamlError::Key { line: line(span) }),
                },
            },
        }
        Ok(())
    }
}

impl Node {
    fn depth(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::List(_, depth) | Self::Map(_, depth) => *depth,
        }
    }

    /// Bytes of its own text and of its items', a mapping's left out.
    fn own_bytes(&self) -> usize {
        match self {
            Self::Scalar(text) => text.as_ref().map_or(0, |text| text.len()),
            Self::List(items, _) => {
                items.iter().filter(|item| item.depth() == 0).map(|item| item.own_bytes()).sum()
            }
            Self::Map(..) => 0,
        }
    }

    /// The value as a setting has it; of a list its plain items.
    fn value(&self) -> Value {
        match self {
            Self::Scalar(Some(text)) => Value::Text(text.as_ref().to_owned()),
            Self::Scalar(None) | Self::Map(..) => Value::Null,
            Self::List(items, _) => {
                let scalar = |item: &Rc<Self>| match &**item {
                    Self::Scalar(Some(text)) => Some(text.as_ref().to_owned()),
                    _ => None,
                };
                Value::List(items.iter().filter_map(scalar).collect())
            }
        }
    }
}

#[derive(Default)]
struct Flattener {
    list: Vec<Setting>,
    visited: usize,
    bytes: usize,
}

impl Flattener {
    /// Collects the settings below `node`; the depth is at most [`MAX_DEPTH`].
    fn node(&mut self, path: &mut Vec<Rc<str>>, node: &Node) -> Result<(), YamlError> {
        self.visit(1)?;
        match node {
            Node::Map(entries, _) => return self.map(path, entries),
            Node::Scalar(_) => {}
            Node::List(items, _) => self.visit(items.len())?,
        }
        // Before anything is copied: one alias may stand for half the file.
        self.bytes += path.iter().map(|name| name.len()).sum::<usize>() + node.own_bytes();
        if self.bytes > MAX_BYTES {
            return Err(YamlError::TooLong { limit: MAX_BYTES });
        }
        let path = path.iter().map(|name| name.as_ref().to_owned()).collect();
        self.list.push(Setting { path, value: node.value() });
        Ok(())
    }

    fn visit(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.visited += nodes;
        if self.visited > MAX_NODES { Err(YamlError::TooMuch { limit: MAX_NODES }) } else { Ok(()) }
    }

    /// What is merged into a mapping gives way to its own entries.
    fn map(&mut self, path: &mut Vec<Rc<str>>, entries: &[Entry]) -> Result<(), YamlError> {
        let merged = |key: &str| key == "<<";
        for (_, value) in entries.iter().filter(|(key, _)| merged(key)) {
            match &**value {
                Node::List(items, _) => items.iter().rev().try_for_each(|item| self.node(path, item))?,
                Node::Map(..) => self.node(path, value)?,
                Node::Scalar(_) => self.visit(1)?,
            }
        }
        for (key, value) in entries.iter().filter(|(key, _)| !merged(key)) {
            path.push(Rc::clone(key));
            self.node(path, value)?;
            path.pop();
        }
        Ok(())
    }
}

fn line(span: &Span) -> usize {
    span.start.line()
}
