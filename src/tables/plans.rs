//! The prepared statements of this backend.

use super::statements::Statement;
use crate::pg::encoding;
use crate::pg::spi::{Plan, Spi};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};

/// Plans are kept for one schema; an extension that was dropped and created elsewhere, or renamed, gets new ones.
struct Plans {
    schema: Schema,
    kept: [Option<Plan>; Statement::COUNT],
}

/// A schema as statements name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    pub oid: pg_sys::Oid,
    /// Quoted, whatever it is, in the database's encoding.
    name: CString,
}

thread_local! {
    static PLANS: RefCell<Option<Plans>> = const { RefCell::new(None) };
    /// Plans of another schema or name, which a call further out may be running: freed when no call is under way.
    static RETIRED: RefCell<Vec<Plan>> = const { RefCell::new(Vec::new()) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, no plan is freed.
pub struct InUse(());

impl InUse {
    pub fn begin() -> InUse {
        if CALLS.get() == 0 {
            RETIRED.take().into_iter().for_each(Plan::free);
        }
        CALLS.set(CALLS.get() + 1);
        InUse(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        CALLS.set(CALLS.get().saturating_sub(1));
    }
}

impl Schema {
    pub fn named(oid: pg_sys::Oid) -> Schema {
        // SAFETY: the name, if the schema exists, is a palloc'd C string.
        let name = unsafe {
            let name = pg_sys::get_namespace_name(oid);
            if name.is_null() {
                CString::default()
            } else {
                CStr::from_ptr(name).to_owned()
            }
        };
        Schema { oid, name: quoted(&name) }
    }

    /// The call that registers an endpoint, on one line whatever its name.
    pub fn call_to_register(&self, endpoint: &str) -> String {
        format!("SELECT {}.idem_protect({});", encoding::shown(&self.name), literal(endpoint))
    }

    /// The statement's text with this schema in it.
    pub fn fill_in(&self, text: &str) -> Vec<u8> {
        let parts: Vec<&[u8]> = text.split("@extschema@").map(str::as_bytes).collect();
        parts.join(self.name.to_bytes())
    }
}

/// As a string constant on one line of printable characters: any other is written as the bytes that it has in this database,
/// which every encoding reads back.
fn literal(text: &str) -> String {
    let is_printable = |c: char| c == '\'' || c == '"' || c.escape_debug().count() == 1;
    let mut quoted = String::from(if text.chars().all(is_printable) { "'" } else { "E'" });
    for c in text.chars() {
        match c {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            c if is_printable(c) => quoted.push(c),
            c => {
                let bytes = c.to_string();
                encoding::to_server_bytes(&bytes).iter().for_each(|byte| quoted.push_str(&format!("\\x{byte:02X}")));
            }
        }
    }
    quoted.push('\'');
    quoted
}

/// As an identifier in double quotes: `quote_identifier` quotes or not, by a setting of the session.
fn quoted(name: &CStr) -> CString {
    let mut quoted = vec![b'"'];
    for byte in name.to_bytes() {
        if *byte == b'"' {
            quoted.push(b'"');
        }
        quoted.push(*byte);
    }
    quoted.push(b'"');
    CString::new(quoted).unwrap_or_default()
}

/// The kept plan of a statement for this schema.
pub fn get(spi: &Spi, schema: &Schema, statement: Statement) -> Plan {
    let kept = PLANS.with_borrow_mut(|plans| {
        if plans.as_ref().is_none_or(|p| p.schema != *schema) {
            let stale = plans.replace(Plans { schema: schema.clone(), kept: [None; Statement::COUNT] });
            RETIRED.with_borrow_mut(|retired| retired.extend(stale.into_iter().flat_map(|p| p.kept).flatten()));
        }
        plans.as_ref().and_then(|p| p.kept[statement as usize])
    });
    kept.unwrap_or_else(|| {
        // Not while the table is borrowed: preparing may run code that calls us.
        let text = schema.fill_in(statement.text());
        let plan = spi.prepare(&text, statement.types(), statement.returns(), statement.planning());
        PLANS.with_borrow_mut(|plans| match plans {
            Some(p) if p.schema == *schema && p.kept[statement as usize].is_none() => {
                p.kept[statement as usize] = Some(plan)
            }
            _ => RETIRED.with_borrow_mut(|retired| retired.push(plan)),
        });
        plan
    })
}
