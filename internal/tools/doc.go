// Package tools pins the programs that check the code, in a module of their own
// so that what they need is not in the module graph of those who use Fencepost.
// .ci/run builds them: go -C internal/tools build -o DIRECTORY tool
//
// staticcheck, go vet and internal/layout are the whole of it. golangci-lint
// bundles both of the former with some hundred other linters in 900 modules,
// which take two cores longer to build than the gate takes for its tests.
package tools
