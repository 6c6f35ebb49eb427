//! YAML to settings: the parser's events, without recursion, aliases bounded by what they expand to.

use std::collections::BTreeMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::YamlError;
use crate::fields::{Setting, Value};

/// Deepest nesting, aliases included.
const MAX_DEPTH: usize = 32;
/// Most nodes, and most settings after aliases are expanded.
const MAX_NODES: usize = 1 << 15;

/// A value in the file. Aliases share theirs.
enum Node {
    Scalar(Option<String>),
    List(Vec<Rc<Self>>, usize),
    Map(Vec<(String, Rc<Self>)>, usize),
}

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
    Map { entries: Vec<(String, Rc<Node>)>, key: Option<String> },
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
                let node = Node::Scalar((!null).then(|| text.into_owned()));
                self.complete(Rc::new(node), anchor, span)
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List(Vec::new()), anchor, span),
            Event::MappingStart(anchor, _) => {
                self.begin(Open::Map { entries: Vec::new(), key: None }, anchor, span)
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
            Some((Open::Map { entries, key }, ..)) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => match &*node {
                    Node::Scalar(text) => {
                        let name = text.clone().unwrap_or_default();
                        if name != "<<" && entries.iter().any(|(known, _)| *known == name) {
                            return Err(YamlError::Twice { line: line(span), key: name });
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
}

#[derive(Default)]
struct Flattener {
    list: Vec<Setting>,
    visited: usize,
}

impl Flattener {
    /// Collects the settings below `node`; the depth is at most [`MAX_DEPTH`].
    fn node(&mut self, path: &mut Vec<String>, node: &Node) -> Result<(), YamlError> {
        self.visited += 1;
        if self.visited > MAX_NODES {
            return Err(YamlError::TooMuch { limit: MAX_NODES });
        }
        let value = match node {
            Node::Map(entries, _) => return self.map(path, entries),
            Node::Scalar(None) => Value::Null,
            Node::Scalar(Some(text)) => Value::Text(text.clone()),
            Node::List(items, _) => {
                self.visited += items.len();
                let scalar = |item: &Rc<Node>| match &**item {
                    Node::Scalar(text) => text.clone(),
                    _ => None,
                };
                Value::List(items.iter().filter_map(scalar).collect())
            }
        };
        self.list.push(Setting { path: path.clone(), value });
        Ok(())
    }

    /// What is merged into a mapping gives way to its own entries.
    fn map(&mut self, path: &mut Vec<String>, entries: &[(String, Rc<Node>)]) -> Result<(), YamlError> {
        let merged = |key: &str| key == "<<";
        for (_, value) in entries.iter().filter(|(key, _)| merged(key)) {
            match &**value {
                Node::List(items, _) => items.iter().rev().try_for_each(|item| self.node(path, item))?,
                Node::Map(..) => self.node(path, value)?,
                Node::Scalar(_) => {}
            }
        }
        for (key, value) in entries.iter().filter(|(key, _)| !merged(key)) {
            path.push(key.clone());
            self.node(path, value)?;
            path.pop();
        }
        Ok(())
    }
}

fn line(span: &Span) -> usize {
    span.start.line()
}
