//! `hip-table INCLUDE TABLE...`: compares each function of the `table!`s in the files TABLE with the headers in the folder
//! INCLUDE. Exit status 1: a difference.
//!
//! Compared is what a call passes: how many arguments, and of each and of the result whether it is a pointer or how many
//! bits it has. The tables have `*mut c_void` for every handle and `i32` for every enum.

use std::collections::BTreeMap;
use std::process::ExitCode;

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{File, FnArg, ForeignItem, Item, PathArguments, ReturnType, Token, Type};

const HEADERS: &str = "#include <hip/hip_runtime_api.h>\n#include <hip/hiprtc.h>\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [include, tables @ ..] = &arguments[..] else {
        eprintln!("usage: hip-table INCLUDE TABLE...");
        return ExitCode::FAILURE;
    };
    match compare(include, tables) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("hip-table: {message}");
            ExitCode::FAILURE
        }
    }
}

fn compare(include: &str, tables: &[String]) -> Result<String, String> {
    let mut written = BTreeMap::new();
    for table in tables {
        let text = std::fs::read_to_string(table).map_err(|error| format!("{table}: {error}"))?;
        let file = syn::parse_file(&text).map_err(|error| format!("{table}: {error}"))?;
        let functions = functions_of_tables(&file).map_err(|error| format!("{table}: {error}"))?;
        // Tables of other vendors may stand beside HIP's.
        written.extend(functions.into_iter().filter(|(name, _)| name.starts_with("hip")));
    }
    let headers = functions_of_headers(include, written.keys())?;
    let differences: Vec<_> =
        written.iter().filter_map(|(name, ours)| difference(name, ours, &headers)).collect();
    if written.is_empty() || !differences.is_empty() {
        return Err(format!("{} functions compared\n{}", written.len(), differences.join("\n")));
    }
    // The control: a table with one argument less, or one that is passed otherwise, is noticed.
    for (name, ours) in &written {
        for broken in ours.broken() {
            if difference(name, &broken, &headers).is_none() {
                return Err(format!("{name} as {broken:?} was not noticed"));
            }
        }
    }
    Ok(format!("hip-table: {} functions are as the headers in {include} have them", written.len()))
}

fn difference(name: &str, ours: &Signature, headers: &BTreeMap<String, Signature>) -> Option<String> {
    match headers.get(name) {
        None => Some(format!("{name}: not in the headers")),
        Some(theirs) if theirs != ours => Some(format!("{name}: {ours:?} here, {theirs:?} in the headers")),
        Some(_) => None,
    }
}

/// How a value is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Pointer,
    Word32,
    Word64,
    Nothing,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Signature {
    arguments: Vec<Class>,
    result: Class,
}

impl Signature {
    /// Wrong ones.
    fn broken(&self) -> impl Iterator<Item = Self> {
        let mut longer = self.clone();
        longer.arguments.push(Class::Pointer);
        let others = (0..self.arguments.len()).map(|i| {
            let mut other = self.clone();
            other.arguments[i] = match other.arguments[i] {
                Class::Word32 => Class::Word64,
                _ => Class::Word32,
            };
            other
        });
        std::iter::once(longer).chain(others.collect::<Vec<_>>())
    }
}

/// The inside of one `table!`.
struct Table(Vec<(String, Signature)>);

impl Parse for Table {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.call(syn::Attribute::parse_outer)?;
        input.parse::<syn::Visibility>()?;
        input.parse::<Token![struct]>()?;
        input.parse::<syn::Ident>()?;
        let lines;
        syn::braced!(lines in input);
        let mut functions = Vec::new();
        while !lines.is_empty() {
            let name: syn::Ident = lines.parse()?;
            let arguments;
            syn::parenthesized!(arguments in lines);
            let arguments = Punctuated::<FnArg, Token![,]>::parse_terminated(&arguments)?;
            let result: ReturnType = lines.parse()?;
            lines.parse::<Token![;]>()?;
            let signature = signature(arguments.iter(), &result, &BTreeMap::new());
            let signature = signature.map_err(|error| syn::Error::new(name.span(), error))?;
            functions.push((name.to_string(), signature));
        }
        Ok(Self(functions))
    }
}

fn functions_of_tables(file: &File) -> syn::Result<Vec<(String, Signature)>> {
    let mut functions = Vec::new();
    for item in &file.items {
        if let Item::Macro(item) = item
            && item.mac.path.is_ident("table")
        {
            functions.extend(item.mac.parse_body::<Table>()?.0);
        }
    }
    Ok(functions)
}

fn functions_of_headers<'a>(
    include: &str,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, Signature>, String> {
    let builder = bindgen::builder()
        .header_contents("tables.h", HEADERS)
        .clang_args(["-D__HIP_PLATFORM_AMD__", "-I", include])
        .layout_tests(false);
    let builder = names.fold(builder, |builder, name| builder.allowlist_function(name));
    let bindings = builder.generate().map_err(|error| error.to_string())?.to_string();
    let file = syn::parse_file(&bindings).map_err(|error| error.to_string())?;
    let aliases = file.items.iter().filter_map(|item| match item {
        Item::Type(alias) => Some((alias.ident.to_string(), (*alias.ty).clone())),
        _ => None,
    });
    let aliases: BTreeMap<String, Type> = aliases.collect();
    let foreign = file.items.iter().flat_map(|item| match item {
        Item::ForeignMod(foreign) => foreign.items.as_slice(),
        _ => &[],
    });
    let mut functions = BTreeMap::new();
    for item in foreign {
        if let ForeignItem::Fn(function) = item {
            let signature = signature(function.sig.inputs.iter(), &function.sig.output, &aliases);
            let name = function.sig.ident.to_string();
            let signature = signature.map_err(|error| format!("{name}: {error}"))?;
            functions.insert(name, signature);
        }
    }
    Ok(functions)
}

fn signature<'a>(
    arguments: impl Iterator<Item = &'a FnArg>,
    result: &ReturnType,
    aliases: &BTreeMap<String, Type>,
) -> Result<Signature, String> {
    let arguments = arguments.map(|argument| match argument {
        FnArg::Typed(typed) => class(&typed.ty, aliases),
        FnArg::Receiver(_) => Err("self".to_owned()),
    });
    let result = match result {
        ReturnType::Default => Class::Nothing,
        ReturnType::Type(_, ty) => class(ty, aliases)?,
    };
    Ok(Signature { arguments: arguments.collect::<Result<_, _>>()?, result })
}

fn class(ty: &Type, aliases: &BTreeMap<String, Type>) -> Result<Class, String> {
    let path = match ty {
        Type::Ptr(_) | Type::BareFn(_) => return Ok(Class::Pointer),
        Type::Path(path) => &path.path,
        _ => return Err("a type of an unknown kind".to_owned()),
    };
    let last = path.segments.last().ok_or("an empty path")?;
    let name = last.ident.to_string();
    match name.as_str() {
        "i32" | "u32" | "c_int" | "c_uint" => Ok(Class::Word32),
        "usize" | "u64" | "c_ulong" => Ok(Class::Word64),
        // The table's name for a function of one pointer.
        "CHostFunction" => Ok(Class::Pointer),
        // bindgen's for a function that may be null.
        "Option" if matches!(last.arguments, PathArguments::AngleBracketed(_)) => Ok(Class::Pointer),
        name => match aliases.get(name) {
            Some(ty) => class(ty, aliases),
            None => Err(format!("a value of type {name}")),
        },
    }
}
