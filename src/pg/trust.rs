//! Whose code runs when a table is written: its triggers' and its rules'.
//!
//! Our statements run with the rights of the tables' owner. A trigger can be put on a table by whoever has the right
//! TRIGGER on it, so only one whose code belongs to a superuser or to that owner may run.

use crate::pg::{catalog, encoding};
use pgrx::pg_sys;
use std::ffi::{c_char, CStr};

extern "C-unwind" {
    /// `catalog/pg_inherits.c`; pgrx has no binding of it.
    fn find_all_inheritors(
        parent: pg_sys::Oid,
        lock: pg_sys::LOCKMODE,
        parents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
}

/// Why a table must not be written with its owner's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distrust {
    /// A trigger by name, and the owner of the code that it would run.
    Trigger {
        name: String,
        owner: String,
    },
    Rule {
        name: String,
    },
}

/// A table that this process has locked, open for a look at its definition; closed when dropped.
pub struct Definition(pg_sys::Relation);

impl Definition {
    /// The table must be locked by this process.
    pub fn of(table: pg_sys::Oid) -> Option<Definition> {
        // SAFETY: the relation cache takes any Oid and returns NULL for what is no relation (any more).
        let relation = unsafe { pg_sys::RelationIdGetRelation(table) };
        (!relation.is_null()).then_some(Definition(relation))
    }

    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: an open relation has its pg_class row.
        unsafe { (*(*self.0).rd_rel).relowner }
    }

    /// Whether a row-level trigger of anybody's may change or swallow what is written.
    pub fn has_triggers(&self) -> bool {
        // SAFETY: the relation is open.
        unsafe { !(*self.0).trigdesc.is_null() }
    }

    /// What writing the table would run that belongs neither to a superuser nor to the table's owner.
    ///
    /// A table without triggers and rules costs two comparisons.
    pub fn distrust(&self) -> Option<Distrust> {
        // SAFETY: the relation is open and locked, so its triggers and rules, parts of the cache's entry, stay as they are.
        unsafe {
            let rules = (*self.0).rd_rules;
            if !rules.is_null() && (*rules).numLocks > 0 {
                let rule = *(*rules).rules;
                return Some(Distrust::Rule { name: name_of_rule((*rule).ruleId) });
            }
            let description = (*self.0).trigdesc;
            if description.is_null() {
                return None;
            }
            let triggers = std::slice::from_raw_parts((*description).triggers, (*description).numtriggers as usize);
            let others_may_add = self.others_may_add_triggers();
            triggers.iter().find_map(|trigger| {
                let owner = untrusted_owner(trigger, self.owner(), others_may_add)?;
                Some(Distrust::Trigger {
                    name: encoding::shown(CStr::from_ptr(trigger.tgname)),
                    owner: name_of_role(owner),
                })
            })
        }
    }
}

impl Definition {
    /// Whether the right TRIGGER is somebody's who is neither the table's owner nor a superuser.
    fn others_may_add_triggers(&self) -> bool {
        const RELACL: pg_sys::AttrNumber = pg_sys::Anum_pg_class_relacl as pg_sys::AttrNumber;
        // SAFETY: a cached tuple is valid until it is released. An ACL is an array of one dimension without NULLs (acl.h): its
        // header, its length and lower bound, then, aligned, the items.
        unsafe {
            let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
            let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from((*self.0).rd_id));
            if tuple.is_null() {
                return true;
            }
            let mut is_null = true;
            let datum = pg_sys::SysCacheGetAttr(cache, tuple, RELACL, &mut is_null);
            let mut found = false;
            if !is_null {
                let acl = pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
                let header = std::mem::size_of::<pg_sys::ArrayType>();
                let count = if (*acl).ndim == 1 { *acl.cast::<u8>().add(header).cast::<i32>() } else { 0 };
                let items = acl.cast::<u8>().add((header + 8).next_multiple_of(8)).cast::<pg_sys::AclItem>();
                // From PostgreSQL 16 on, with the right to grant it in the upper half.
                #[allow(clippy::unnecessary_cast)]
                let may_add = |item: &pg_sys::AclItem| item.ai_privs as u32 & pg_sys::ACL_TRIGGER as u32 != 0;
                found = std::slice::from_raw_parts(items, count as usize).iter().any(|item| {
                    may_add(item)
                        && item.ai_grantee != self.owner()
                        && (item.ai_grantee == pg_sys::InvalidOid || !pg_sys::superuser_arg(item.ai_grantee))
                });
            }
            pg_sys::ReleaseSysCache(tuple);
            found
        }
    }

    /// The partitions and other children of the table, which hold rows of it and have triggers of their own.
    pub fn children(&self, lock: u32) -> Vec<pg_sys::Oid> {
        // SAFETY: the relation is open; the list holds Oids, each of a child that is locked until the transaction ends.
        unsafe {
            if !(*(*self.0).rd_rel).relhassubclass {
                return Vec::new();
            }
            let (table, lock) = ((*self.0).rd_id, lock as pg_sys::LOCKMODE);
            let list = pg_sys::ffi::pg_guard_ffi_boundary(|| find_all_inheritors(table, lock, std::ptr::null_mut()));
            let oids = (0..(*list).length).map(|n| pg_sys::list_nth_oid(list, n));
            oids.filter(|oid| *oid != (*self.0).rd_id).collect()
        }
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: opened in `of`; after an ERROR the abort closes it.
            unsafe { pg_sys::RelationClose(self.0) };
        }
    }
}

/// The owner of code that the trigger would run and that must not run. `TRUNCATE` triggers do not matter, nor do
/// disabled ones.
///
/// # Safety
///
/// The trigger must be one of an open relation.
unsafe fn untrusted_owner(
    trigger: &pg_sys::Trigger,
    table_owner: pg_sys::Oid,
    others_may_add: bool,
) -> Option<pg_sys::Oid> {
    const WRITES: u32 = pg_sys::TRIGGER_TYPE_INSERT | pg_sys::TRIGGER_TYPE_UPDATE | pg_sys::TRIGGER_TYPE_DELETE;
    const DISABLED: c_char = b'D' as c_char;
    if trigger.tgtype as u32 & WRITES == 0 || trigger.tgenabled == DISABLED {
        return None;
    }
    // SAFETY: look-ups in the system catalogs by Oid.
    let is_trusted = |owner: pg_sys::Oid| owner == table_owner || unsafe { pg_sys::superuser_arg(owner) };
    let function_owner = owner_of(pg_sys::ProcedureRelationId, trigger.tgfoid);
    if !is_trusted(function_owner) {
        return Some(function_owner);
    }
    // Who adds a trigger chooses its arguments and its condition: with these, what a trusted function does, or one that comes
    // with PostgreSQL (query_to_xml runs SQL, lo_export writes a file), is as he wants it.
    if others_may_add && !trigger.tgisinternal && (trigger.tgnargs > 0 || !trigger.tgqual.is_null()) {
        return Some(pg_sys::InvalidOid);
    }
    if trigger.tgqual.is_null() {
        return None;
    }
    // The right may have been taken away since: whoever wrote a condition that does more than compute is not known.
    // SAFETY: the condition is the text of an expression; its copy is freed with the current memory context.
    if unsafe { pg_sys::contain_mutable_functions(pg_sys::stringToNode(trigger.tgqual).cast()) } {
        return Some(pg_sys::InvalidOid);
    }
    // The WHEN condition runs too: functions, operators and types (a domain has CHECKs) that it uses.
    depends_on(trigger.tgoid)
        .into_iter()
        .filter(|(class, _)| *class != pg_sys::RelationRelationId)
        .map(|(class, object)| owner_of(class, object))
        .find(|owner| !is_trusted(*owner))
}

/// A row of `pg_depend`, whose columns are all of fixed size (pg_depend.h).
#[repr(C)]
struct Dependency {
    classid: pg_sys::Oid,
    objid: pg_sys::Oid,
    objsubid: i32,
    refclassid: pg_sys::Oid,
    refobjid: pg_sys::Oid,
}

/// What a trigger depends on, as (catalog, object); objects that come with PostgreSQL itself are not recorded.
fn depends_on(trigger: pg_sys::Oid) -> Vec<(pg_sys::Oid, pg_sys::Oid)> {
    const DEPEND_DEPENDER_INDEX: u32 = 2673; // pg_depend.h
    const DEPEND_RELATION: u32 = 2608;
    let mut found = Vec::new();
    // SAFETY: an index scan of a catalog, as in recordDependencyOn's readers (pg_depend.c); both keys are Oids, compared
    // by oideq; a tuple is valid until the next one is read.
    unsafe {
        let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
        for (n, value) in [pg_sys::TriggerRelationId, trigger].into_iter().enumerate() {
            pg_sys::ScanKeyInit(
                &mut keys[n],
                n as pg_sys::AttrNumber + 1,
                pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                pg_sys::Oid::from(pg_sys::F_OIDEQ),
                pg_sys::Datum::from(value),
            );
        }
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let catalog = pg_sys::table_open(pg_sys::Oid::from(DEPEND_RELATION), lock);
        let index = pg_sys::Oid::from(DEPEND_DEPENDER_INDEX);
        let scan = pg_sys::systable_beginscan(catalog, index, true, std::ptr::null_mut(), 2, keys.as_mut_ptr());
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<Dependency>();
            found.push((row.refclassid, row.refobjid));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
    found
}

/// The owner of a function, operator or type; nobody's (`InvalidOid`, whom nobody trusts) for anything else.
fn owner_of(class: pg_sys::Oid, object: pg_sys::Oid) -> pg_sys::Oid {
    use pg_sys::SysCacheIdentifier::{OPEROID, PROCOID, TYPEOID};
    let cache = match class {
        pg_sys::ProcedureRelationId => PROCOID,
        pg_sys::OperatorRelationId => OPEROID,
        pg_sys::TypeRelationId => TYPEOID,
        _ => return pg_sys::InvalidOid,
    };
    // SAFETY: a cached tuple is valid until it is released; its fixed part is the row type of its catalog.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as i32, pg_sys::Datum::from(object));
        if tuple.is_null() {
            return pg_sys::InvalidOid;
        }
        let row = pg_sys::GETSTRUCT(tuple);
        let owner = match class {
            pg_sys::ProcedureRelationId => (*row.cast::<pg_sys::FormData_pg_proc>()).proowner,
            pg_sys::OperatorRelationId => (*row.cast::<pg_sys::FormData_pg_operator>()).oprowner,
            _ => (*row.cast::<pg_sys::FormData_pg_type>()).typowner,
        };
        pg_sys::ReleaseSysCache(tuple);
        owner
    }
}

/// The name of a role; empty when there is none.
pub fn name_of_role(role: pg_sys::Oid) -> String {
    // SAFETY: `noerr` makes an unknown role NULL; else the name is a palloc'd C string.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() {
            String::new()
        } else {
            encoding::shown(CStr::from_ptr(name))
        }
    }
}

/// What a row of `pg_rewrite` begins with (pg_rewrite.h).
#[repr(C)]
struct Rewrite {
    oid: pg_sys::Oid,
    rulename: pg_sys::NameData,
}

/// Read from the catalog: PostgreSQL's own functions for it need a snapshot, which the commit guard does not have.
fn name_of_rule(rule: pg_sys::Oid) -> String {
    const PG_REWRITE: u32 = 2618;
    // SAFETY: as the catalog is defined in every version; a name is NUL-terminated.
    let names = unsafe {
        catalog::rows(PG_REWRITE.into(), |row: &Rewrite| {
            (row.oid == rule).then(|| encoding::shown(CStr::from_ptr(row.rulename.data.as_ptr())))
        })
    };
    names.into_iter().flatten().next().unwrap_or_default()
}
