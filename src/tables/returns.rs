//! What each statement returns, as its rows are read: a table whose columns have other types is not read.

use super::statements::Statement;
use pgrx::pg_sys::BuiltinOid::{
    self, BOOLOID as BOOL, BYTEAOID as BYTEA, INT4OID as INT4, INT8OID as INT8, INTERVALOID as INTERVAL,
    JSONBOID as JSONB, TEXTARRAYOID as TEXT_ARRAY, TEXTOID as TEXT, TIMESTAMPTZOID as TIMESTAMPTZ, UUIDOID as UUID,
};

const LOOK_UP: &[BuiltinOid] =
    &[TEXT, BOOL, BOOL, INT4, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, INT4, JSONB, BYTEA, TEXT, UUID, TIMESTAMPTZ];

impl Statement {
    /// The types of the columns that it returns.
    pub fn returns(self) -> &'static [BuiltinOid] {
        match self {
            Statement::LookUp => LOOK_UP,
            Statement::Endpoint => &[BOOL, BOOL, INTERVAL, INTERVAL],
            Statement::Insert | Statement::TakeOver => &[INT4, TIMESTAMPTZ],
            Statement::Finish | Statement::Release | Statement::DeleteClaim => &[INT4],
            Statement::Forget | Statement::Checkpoint | Statement::Unregister => &[INT4],
            Statement::Obstacle => &[TEXT, INT4, BOOL, INT4],
            Statement::State => &[TEXT, INT4],
            Statement::Sweep => &[TEXT, INT8, TIMESTAMPTZ],
            Statement::Erase | Statement::CountDue | Statement::CountAlive => &[INT8],
            Statement::CountStuck => &[TEXT, INT8],
            Statement::Stuck => &[TEXT, TEXT, TEXT, INT4, TEXT],
            Statement::HandOut => &[TEXT, TEXT, TEXT, UUID, INT4, TEXT, JSONB, TIMESTAMPTZ],
            Statement::Register => &[TEXT],
            Statement::OpenClaims => &[TEXT, BOOL, INT8, INT8, INT8, TIMESTAMPTZ],
            Statement::SweepLag => &[INTERVAL],
            Statement::Registry => {
                &[TEXT, TEXT, BOOL, INTERVAL, INTERVAL, INTERVAL, INT4, INT8, TEXT_ARRAY, TEXT, TIMESTAMPTZ]
            }
            Statement::UnregisteredInUse => &[TEXT, BOOL, BOOL],
        }
    }
}
