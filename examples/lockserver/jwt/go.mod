module github.com/fencepost-go/fencepost/examples/lockserver/jwt

go 1.26.0

require (
	github.com/fencepost-go/fencepost v0.0.0
	github.com/golang-jwt/jwt/v5 v5.3.1
	golang.org/x/time v0.16.0
)

require (
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace github.com/fencepost-go/fencepost => ../../..
