//! Reads statements in order, following conditions that can be decided, and collects the launches.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::expand::{Environment, Variable, is_name, is_unknown, matches};
use super::lexer::{Piece, literal, tokens};
use super::parser::{MAX_DEPTH, Statement, Word, statements};
use super::{ScriptError, launcher};

/// Deepest nesting of statements, function calls and `eval` together.
const MAX_CALLS: u32 = MAX_DEPTH + 16;
/// Rounds of a loop that are read.
const MAX_ROUNDS: usize = 64;

/// A command that starts a training.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Command {
    pub line: u32,
    pub words: Vec<String>,
}

/// The state of a reading.
#[derive(Default)]
pub(super) struct Shell {
    pub environment: Environment,
    pub launches: Vec<Command>,
    pub warnings: Vec<String>,
    functions: BTreeMap<String, Rc<Vec<Statement>>>,
    /// Words before a `bash -c`, which belong to the launch inside it.
    prefix: Vec<String>,
    depth: u32,
}

/// Whether a status is success; `None` where only a run would tell.
type Status = Option<bool>;

impl Shell {
    /// Reads a whole script or the text of an `eval`.
    pub fn read(&mut self, text: &str) -> Result<Status, ScriptError> {
        self.environment.spend(text.len())?;
        let statements = statements(&tokens(text)?)?;
        self.list(&statements)
    }

    fn list(&mut self, statements: &[Statement]) -> Result<Status, ScriptError> {
        self.depth += 1;
        if self.depth > MAX_CALLS {
            return Err(ScriptError::TooDeep { line: 0, limit: MAX_CALLS });
        }
        let mut status = Some(true);
        for statement in statements {
            status = self.statement(statement)?;
        }
        self.depth -= 1;
        Ok(status)
    }

    fn statement(&mut self, statement: &Statement) -> Result<Status, ScriptError> {
        self.environment.spend(16)?;
        match statement {
            Statement::Simple { words, arrays } => {
                for array in arrays {
                    let mut values = Vec::new();
                    for word in &array.words {
                        values.extend(self.environment.fields(word)?);
                    }
                    self.environment.assign_array(&array.name, values, array.append);
                }
                self.simple(words)
            }
            Statement::Arithmetic(text) => self.arithmetic(text),
            Statement::Chain { first, rest } => self.chain(first, rest),
            Statement::If(arms) => self.conditional(arms),
            Statement::For { name, words, body } => self.for_loop(name, words.as_deref(), body),
            Statement::While { condition, until, body } => self.while_loop(condition, *until, body),
            Statement::Case { word, arms } => self.case(word, arms),
            Statement::Group(body) => self.list(body),
            Statement::Function { name, body } => {
                self.functions.insert(name.clone(), Rc::clone(body));
                Ok(Some(true))
            }
        }
    }

    fn chain(&mut self, first: &Statement, rest: &[(bool, Statement)]) -> Result<Status, ScriptError> {
        let mut status = self.statement(first)?;
        for (on, next) in rest {
            match status {
                Some(last) if last == *on => status = self.statement(next)?,
                Some(_) => {}
                None => {
                    let before = self.snapshot()?;
                    self.statement(next)?;
                    self.merge(vec![before]);
                }
            }
        }
        Ok(status)
    }

    fn conditional(
        &mut self,
        arms: &[(Option<Vec<Statement>>, Vec<Statement>)],
    ) -> Result<Status, ScriptError> {
        let mut outcomes = Vec::new();
        for (condition, body) in arms {
            let status = match condition {
                Some(condition) => self.list(condition)?,
                None => Some(true),
            };
            match status {
                Some(true) => {
                    self.list(body)?;
                    break;
                }
                Some(false) => {}
                None => {
                    let before = self.snapshot()?;
                    self.list(body)?;
                    outcomes.push(std::mem::replace(&mut self.environment.variables, before));
                }
            }
        }
        self.merge(outcomes);
        Ok(None)
    }

    fn for_loop(
        &mut self,
        name: &str,
        words: Option<&[Word]>,
        body: &[Statement],
    ) -> Result<Status, ScriptError> {
        let values = match words {
            None => self.environment.arguments.clone(),
            Some(words) => {
                let mut values = Vec::new();
                for word in words {
                    values.extend(self.environment.fields(word)?);
                }
                values
            }
        };
        for value in values.into_iter().take(MAX_ROUNDS) {
            self.environment.assign(name, value, false)?;
            self.list(body)?;
        }
        Ok(None)
    }

    fn while_loop(
        &mut self,
        condition: &[Statement],
        until: bool,
        body: &[Statement],
    ) -> Result<Status, ScriptError> {
        for _ in 0..MAX_ROUNDS {
            match self.list(condition)? {
                Some(status) if status == until => break,
                Some(_) => {
                    self.list(body)?;
                }
                None => {
                    let before = self.snapshot()?;
                    self.list(body)?;
                    self.merge(vec![before]);
                    break;
                }
            }
        }
        Ok(None)
    }

    fn case(&mut self, word: &Word, arms: &[(Vec<Word>, Vec<Statement>)]) -> Result<Status, ScriptError> {
        let value = self.tested(&word.pieces)?;
        let mut outcomes = Vec::new();
        for (patterns, body) in arms {
            if is_unknown(&value) {
                let before = self.snapshot()?;
                self.list(body)?;
                outcomes.push(std::mem::replace(&mut self.environment.variables, before));
                continue;
            }
            for pattern in patterns {
                let pattern = self.tested(&pattern.pieces)?;
                self.environment.spend(pattern.len() * value.len() / 16)?;
                if matches(&pattern, &value) {
                    return self.list(body);
                }
            }
        }
        self.merge(outcomes);
        Ok(None)
    }

    /// A copy of the variables, paid for.
    fn snapshot(&mut self) -> Result<BTreeMap<String, Variable>, ScriptError> {
        let size = |variable: &Variable| match variable {
            Variable::Scalar(value) => value.len() + 32,
            Variable::Array(values) => values.iter().map(|value| value.len() + 16).sum::<usize>() + 32,
        };
        let total = self.environment.variables.values().map(size).sum();
        self.environment.spend(total)?;
        Ok(self.environment.variables.clone())
    }

    /// Variables that differ between the current state and `others` are not known any more.
    fn merge(&mut self, others: Vec<BTreeMap<String, Variable>>) {
        for other in others {
            let current = &self.environment.variables;
            let differs = |name: &&String| current.get(*name) != other.get(*name);
            let names: Vec<_> = current.keys().chain(other.keys()).filter(differs).cloned().collect();
            for name in names {
                let unknown = self.environment.unknown(format!("${name}, which depends on a condition"));
                self.environment.variables.insert(name, Variable::Scalar(unknown));
            }
        }
    }

    fn simple(&mut self, words: &[Word]) -> Result<Status, ScriptError> {
        let assignments = words.iter().take_while(|word| assignment(word).is_some()).count();
        if assignments == words.len() {
            for word in words {
                self.assign(word)?;
            }
            return Ok(Some(true));
        }
        let (before, words) = words.split_at(assignments);
        match literal(&words[0].pieces) {
            Some("export" | "declare" | "local" | "readonly" | "typeset") => {
                for word in &words[1..] {
                    self.assign(word)?;
                }
                Ok(Some(true))
            }
            Some("[" | "[[" | "test") => self.test(words),
            Some("true" | ":") => {
                for word in words {
                    self.environment.fields(word)?;
                }
                Ok(Some(true))
            }
            Some("false") => Ok(Some(false)),
            Some("let") => {
                let text = self.environment.text(&words[words.len() - 1].pieces)?;
                self.arithmetic(&text)
            }
            // Their words are shown, written or followed, not run.
            Some("echo" | "printf" | "cat" | "tee" | "mkdir" | "cd" | "exit" | "return" | "wait") => Ok(None),
            _ => {
                let launches = self.launches.len();
                let status = self.command(words)?;
                // Variables of the launch's own environment say how many devices there are.
                if self.launches.len() > launches {
                    before.iter().try_for_each(|word| self.assign(word))?;
                }
                Ok(status)
            }
        }
    }

    fn command(&mut self, words: &[Word]) -> Result<Status, ScriptError> {
        let line = words[0].line;
        let mut fields = Vec::new();
        for word in words {
            fields.extend(self.environment.fields(word)?);
        }
        let Some(name) = fields.first().cloned() else { return Ok(Some(true)) };
        if let Some(body) = self.functions.get(&name).cloned() {
            let outer = std::mem::replace(&mut self.environment.arguments, fields.split_off(1));
            let status = self.list(&body)?;
            self.environment.arguments = outer;
            return Ok(status);
        }
        match name.as_str() {
            "shift" => {
                let count = fields.get(1).and_then(|n| n.parse().ok()).unwrap_or(1);
                let arguments = &mut self.environment.arguments;
                arguments.drain(..arguments.len().min(count));
                Ok(Some(true))
            }
            "set" => {
                if let Some(at) = fields.iter().position(|field| field == "--") {
                    self.environment.arguments = fields.split_off(at + 1);
                }
                Ok(Some(true))
            }
            "unset" => {
                for field in &fields {
                    self.environment.variables.remove(field);
                }
                Ok(Some(true))
            }
            "read" => {
                for field in fields.iter().filter(|field| is_name(field)).skip(1) {
                    let unknown = self.environment.unknown(format!("${field}, which is read at run time"));
                    self.environment.assign(field, unknown, false)?;
                }
                Ok(None)
            }
            "source" | "." => {
                let file = fields.get(1).map(|file| self.environment.shown(file)).unwrap_or_default();
                self.warnings.push(format!("line {line}: {file} is not read; give what it sets yourself"));
                Ok(None)
            }
            "eval" => self.again(&fields[1..].join(" ")),
            _ => self.launch(line, fields),
        }
    }

    /// Reads text that the shell would parse again.
    fn again(&mut self, text: &str) -> Result<Status, ScriptError> {
        self.depth += 1;
        if self.depth > MAX_CALLS {
            return Err(ScriptError::TooDeep { line: 0, limit: MAX_CALLS });
        }
        let status = self.read(text);
        self.depth -= 1;
        status
    }

    /// Keeps the command if it starts a training, and looks into `bash -c '…'`.
    fn launch(&mut self, line: u32, fields: Vec<String>) -> Result<Status, ScriptError> {
        let inner =
            fields.windows(3).position(|w| is_shell(&w[0]) && w[1].ends_with('c') && w[1].starts_with('-'));
        if let Some(at) = inner {
            let outer = std::mem::replace(&mut self.prefix, fields[..at].to_vec());
            let status = self.again(&fields[at + 2])?;
            self.prefix = outer;
            return Ok(status);
        }
        // `ssh host "…"` runs its words as a shell does.
        let quoted = |field: &String| {
            field.split_whitespace().count() > 1 && field.split_whitespace().any(starts_training)
        };
        let remote = fields.iter().position(|field| is_remote(field));
        if let Some(at) = remote.and_then(|at| Some(at + fields[at..].iter().position(quoted)?)) {
            return self.again(&fields[at..].join(" "));
        }
        if fields.iter().any(|field| starts_training(field)) || launcher::swift(&fields).is_some() {
            let words: Vec<_> = self.prefix.iter().cloned().chain(fields).collect();
            if !self.launches.iter().any(|launch| launch.words == words) {
                self.launches.push(Command { line, words });
            }
        }
        Ok(None)
    }

    fn assign(&mut self, word: &Word) -> Result<(), ScriptError> {
        let Some((name, append, first)) = assignment(word) else { return Ok(()) };
        let mut pieces = word.pieces.clone();
        pieces[0] = Piece::Text { text: first.to_owned(), quoted: true };
        let value = self.environment.text(&pieces)?;
        self.environment.assign(name, value, append)
    }

    /// `((…))`: an assignment, or a condition.
    fn arithmetic(&mut self, text: &str) -> Result<Status, ScriptError> {
        let trimmed = text.trim();
        let counted = trimmed.strip_suffix("++").or(trimmed.strip_prefix("++")).filter(|name| is_name(name));
        let (name, expression) = match (counted, trimmed.split_once('=')) {
            (Some(name), _) => (name, format!("{name} + 1")),
            (None, Some((name, value))) if is_name(name.trim()) && !value.starts_with('=') => {
                (name.trim(), value.to_owned())
            }
            (None, Some((name, value))) if name.trim().strip_suffix('+').is_some_and(is_name) => {
                let name = name.trim().trim_end_matches('+');
                (name, format!("{name} + ({value})"))
            }
            _ => return Ok(self.environment.calculate(trimmed)?.map(|value| value != 0)),
        };
        let value = match self.environment.calculate(&expression)? {
            Some(value) => value.to_string(),
            None => self.environment.unknown(format!("$(({text}))")),
        };
        self.environment.assign(name, value, false)?;
        Ok(Some(true))
    }

    /// The value of a word in a test or pattern, where an unset variable is empty.
    fn tested(&mut self, pieces: &[Piece]) -> Result<String, ScriptError> {
        let outer = std::mem::replace(&mut self.environment.unset_is_empty, true);
        let value = self.environment.text(pieces);
        self.environment.unset_is_empty = outer;
        value
    }

    /// `[ … ]`, `[[ … ]]` and `test`, joined by `&&`, `||`, `-a` and `-o` from left to right.
    fn test(&mut self, words: &[Word]) -> Result<Status, ScriptError> {
        let mut values = Vec::new();
        for word in &words[1..] {
            values.push(self.tested(&word.pieces)?);
        }
        if matches!(values.last().map(String::as_str), Some("]" | "]]")) {
            values.pop();
        }
        let mut status = None;
        let mut joined_by_and = None;
        for part in values.split_inclusive(|value| is_joint(value)) {
            let (terms, joint) = match part.split_last() {
                Some((last, terms)) if is_joint(last) => (terms, Some(last == "&&" || last == "-a")),
                _ => (part, None),
            };
            let value = self.term(terms);
            status = match joined_by_and {
                None => value,
                Some(true) => both(status, value),
                Some(false) => both(status.map(|s| !s), value.map(|v| !v)).map(|s| !s),
            };
            joined_by_and = joint;
        }
        Ok(status)
    }

    fn term(&self, values: &[String]) -> Status {
        let known = |value: &String| !is_unknown(value);
        match values {
            [not, rest @ ..] if not == "!" => self.term(rest).map(|status| !status),
            [value] if known(value) => Some(!value.is_empty()),
            [operator, value] => match operator.as_str() {
                "-z" if known(value) => Some(value.is_empty()),
                "-n" if known(value) => Some(!value.is_empty()),
                "-v" => Some(self.environment.variables.contains_key(value)),
                // A value with an unknown part may still be seen not to be empty, but not that it is set.
                _ => None,
            },
            [a, operator, b] if known(a) && known(b) => {
                let numbers = || Some((a.trim().parse::<i64>().ok()?, b.trim().parse::<i64>().ok()?));
                match operator.as_str() {
                    "=" | "==" => Some(matches(b, a)),
                    "!=" => Some(!matches(b, a)),
                    "-eq" => numbers().map(|(a, b)| a == b),
                    "-ne" => numbers().map(|(a, b)| a != b),
                    "-lt" => numbers().map(|(a, b)| a < b),
                    "-le" => numbers().map(|(a, b)| a <= b),
                    "-gt" => numbers().map(|(a, b)| a > b),
                    "-ge" => numbers().map(|(a, b)| a >= b),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

fn is_joint(value: &str) -> bool {
    matches!(value, "&&" | "||" | "-a" | "-o")
}

fn both(a: Status, b: Status) -> Status {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn is_shell(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("bash" | "sh"))
}

/// Whether a word runs others on another machine.
fn is_remote(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("ssh" | "pdsh" | "clush"))
}

/// Whether a word marks a training command: a flag that every Megatron training has.
fn starts_training(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word).replace('_', "-");
    matches!(&*name, "--num-layers" | "--hidden-size" | "--micro-batch-size" | "--num-attention-heads")
        || launcher::overrides_size(word)
}

/// `NAME=…` or `NAME+=…`: the name, whether it appends, and the rest of the first piece.
fn assignment(word: &Word) -> Option<(&str, bool, &str)> {
    let Piece::Text { text, quoted: false } = word.pieces.first()? else { return None };
    let (name, first) = text.split_once('=')?;
    let (name, append) = match name.strip_suffix('+') {
        Some(name) => (name, true),
        None => (name, false),
    };
    is_name(name).then_some((name, append, first))
}
