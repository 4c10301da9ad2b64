package httpfence_test

import (
	"fmt"
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// The account's number has one spelling, and the handler asks the same function
// for it, so that the row it writes is the one that the mark is of.
func ExampleInteger() {
	account := httpfence.Integer(httpfence.PathValue("id"))
	fence := httpfence.New(guard.NewMemory(nil), account, nil)
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/close", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := account(r)
		fmt.Println("closes account", id)
	})))

	fmt.Println(send(mux, "POST", "/accounts/7/close", "11").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/07/close", "10").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/7/close", "10").StatusCode)
	// Output:
	// closes account 7
	// 200
	// 400
	// 412
}

func ExampleUUID() {
	fence := httpfence.New(guard.NewMemory(nil), httpfence.UUID(httpfence.PathValue("id")), nil)
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/close", fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))

	fmt.Println(send(mux, "POST", "/accounts/01970e2c-6a41-7abc-9def-0123456789ab/close", "11").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/01970E2C-6A41-7ABC-9DEF-0123456789AB/close", "10").StatusCode)
	// Output:
	// 200
	// 412
}
