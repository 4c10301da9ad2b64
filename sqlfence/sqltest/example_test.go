package sqltest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// closePeriod is the code under test.
func closePeriod(ctx context.Context, db *sqlfence.DB[*sql.Tx], claim guard.Claim, period string) error {
	return db.InTx(ctx, claim, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE billing_close SET status = 'closed' WHERE period = $1", period)
		return err
	})
}

// Example_sqlmock tests code that calls InTx without a database: what the code does
// when it is admitted, and when a newer holder has taken over. go-sqlmock shows
// what statements were sent, not whether the fence holds: that needs a server.
func Example_sqlmock() {
	pool, mock, err := sqlmock.New()
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	db, err := sqlfence.Std(pool, nil)
	if err != nil {
		panic(err)
	}
	claim := guard.Claim{Resource: "acme:billing-close:2026-04", Token: 7, LeaseID: "lease-7"}

	// Admitted: InTx sends a statement after BEGIN, and one before COMMIT.
	mock.ExpectBegin()
	mock.ExpectQuery("fencepost.enter").WillReturnRows(sqlmock.NewRows([]string{"session", "entered", "claims", "id", "server"}).AddRow("", "", "", "741", "1"))
	mock.ExpectExec("UPDATE billing_close").WithArgs("2026-04").WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectQuery("fencepost.transaction").WillReturnRows(sqlmock.NewRows([]string{"whole"}).AddRow(true))
	mock.ExpectCommit()
	fmt.Println(closePeriod(context.Background(), db, claim, "2026-04"))

	// Refused: SF001 is stale, SF002 another lease under the same token.
	mock.ExpectBegin()
	mock.ExpectQuery("fencepost.enter").WillReturnError(&pgconn.PgError{Severity: "ERROR", Code: "SF001"})
	mock.ExpectRollback()
	fmt.Println(errors.Is(closePeriod(context.Background(), db, claim, "2026-04"), guard.ErrStale))
	fmt.Println(mock.ExpectationsWereMet())
	// Output:
	// <nil>
	// true
	// <nil>
}
